# The one place that says which llama.cpp this project is built on. pyproject.toml repeats the package
# version, and tests/test_pin.py compares them.
set(GGUF_WORKER_PINNED_PACKAGE "0.3.36")
set(GGUF_WORKER_PINNED_COMMIT "0c1e57098bba43ac29e6e3b677cdceebdd22334f")

# The project's own version, from pyproject.toml when it is built as a package.
if(SKBUILD_PROJECT_VERSION_FULL)
    set(GGUF_WORKER_VERSION "${SKBUILD_PROJECT_VERSION_FULL}")
else()
    file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../pyproject.toml" version_line REGEX "^version = ")
    string(REGEX REPLACE "^version = \"(.*)\".*" "\\1" GGUF_WORKER_VERSION "${version_line}")
endif()
