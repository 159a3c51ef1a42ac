"""Which models there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from gguf_worker.gateway.errors import ApiError, unavailable
from gguf_worker.gateway.model import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A model as /v1/models lists it."""

    id: str
    created: int

    def body(self) -> dict[str, object]:
        """In OpenAI's shape."""
        return {"id": self.id, "object": "model", "created": self.created, "owned_by": "gguf-worker"}


class Catalogue(Protocol):
    """The models of a gateway."""

    def cards(self) -> Sequence[Card]:
        """What can be asked for."""

    def open_models(self) -> Sequence[ServedModel]:
        """What is being served."""

    def only(self) -> ServedModel | None:
        """The one that every request is for, where there is no other and it is being served."""

    async def get(self, name: str | None) -> ServedModel:
        """A model by its name; None is the only one. Raises ApiError where there is none (404), or none at
        this time (503)."""


class OneModel:
    """The catalogue of a process that serves one model, once it is loaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model: ServedModel | None = None
        """None until it is ready."""
        self.refusal: ApiError = unavailable("the model is being loaded", code="loading", retry_after_s=5)
        """Why it is not there."""

    def cards(self) -> Sequence[Card]:
        return [Card(id=self.model.name, created=self.model.created)] if self.model is not None else []

    def open_models(self) -> Sequence[ServedModel]:
        return [self.model] if self.model is not None else []

    def only(self) -> ServedModel | None:
        return self.model

    async def get(self, name: str | None) -> ServedModel:
        if name not in (None, self.name):
            raise no_such_model(name or "", [self.name])
        if self.model is None:
            raise self.refusal
        return self.model


def no_such_model(name: str, known: Sequence[str]) -> ApiError:
    """404, with the names that there are."""
    there = f"there is {', '.join(map(repr, known))}" if known else "there is none at this time"
    return ApiError(f"there is no model {name!r}; {there}", status=404, param="model", code="model_not_found")


def name_of_file(path: str) -> str:
    """What a model's file is called by: without its ending, and without the number of a part."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", PurePath(path).name) or path
