"""Certificates: measured evidence that a recipe, cut, computes what the unsplit model computes."""

from gguf_worker.certification.certificate import (
    Certificate,
    CertificateError,
    CutEvidence,
    read_certificate,
)
from gguf_worker.certification.certify import CertifyPlan, certify
from gguf_worker.certification.comparison import Comparison, compare
from gguf_worker.certification.workload import Sequence, default_prompts, random_tokens

__all__ = [
    "Certificate",
    "CertificateError",
    "CertifyPlan",
    "Comparison",
    "CutEvidence",
    "Sequence",
    "certify",
    "compare",
    "default_prompts",
    "random_tokens",
    "read_certificate",
]
