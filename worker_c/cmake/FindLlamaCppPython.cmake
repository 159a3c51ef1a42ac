# Finds the headers and libraries that the pinned llama-cpp-python carries and checks that they are the
# pinned ones. Defines the target LlamaCppPython::llama and LLAMA_CPP_LIB_DIR.
#
# Only libllama, libggml and libggml-base are linked: which backends libggml brings along (CPU, CUDA,
# Metal, Vulkan) is the package's own affair.
if(NOT LLAMA_CPP_DIR)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    execute_process(
        COMMAND "${Python3_EXECUTABLE}" -c
                "import importlib.util as u; s = u.find_spec('llama_cpp'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE LLAMA_CPP_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT LLAMA_CPP_DIR)
        message(FATAL_ERROR
            "llama_cpp is not installed for ${Python3_EXECUTABLE}. Run: "
            "${Python3_EXECUTABLE} -m pip install llama-cpp-python==${GGUF_WORKER_PINNED_PACKAGE}")
    endif()
endif()
get_filename_component(LLAMA_CPP_SITE "${LLAMA_CPP_DIR}" DIRECTORY)
set(LLAMA_CPP_LIB_DIR "${LLAMA_CPP_DIR}/lib")

find_path(LLAMA_CPP_INCLUDE_DIR llama.h
    PATHS "${LLAMA_CPP_SITE}/include" "${LLAMA_CPP_DIR}/include" NO_DEFAULT_PATH)
foreach(library llama ggml ggml-base)
    find_library(LLAMA_CPP_${library}_LIBRARY ${library} PATHS "${LLAMA_CPP_LIB_DIR}" NO_DEFAULT_PATH)
endforeach()

find_file(LLAMA_CPP_CONFIG llama-config.cmake
    PATHS "${LLAMA_CPP_SITE}/lib/cmake/llama" "${LLAMA_CPP_SITE}/lib64/cmake/llama" NO_DEFAULT_PATH)
if(LLAMA_CPP_CONFIG)
    file(STRINGS "${LLAMA_CPP_CONFIG}" commit_line REGEX "^set\\(LLAMA_BUILD_COMMIT")
    string(REGEX REPLACE "^set\\(LLAMA_BUILD_COMMIT +([^)]*)\\)" "\\1" LLAMA_CPP_COMMIT "${commit_line}")
    # The library knows its commit by a short hash whose length git chose when it was built.
    string(LENGTH "${LLAMA_CPP_COMMIT}" commit_length)
    string(SUBSTRING "${GGUF_WORKER_PINNED_COMMIT}" 0 ${commit_length} pinned_prefix)
    if(commit_length LESS 7 OR NOT LLAMA_CPP_COMMIT STREQUAL pinned_prefix)
        message(FATAL_ERROR
            "llama.cpp ${LLAMA_CPP_COMMIT} in ${LLAMA_CPP_DIR} is not the pinned ${GGUF_WORKER_PINNED_COMMIT}. "
            "Install git, then run: pip install --force-reinstall --no-cache-dir "
            "llama-cpp-python==${GGUF_WORKER_PINNED_PACKAGE}")
    endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LlamaCppPython
    REQUIRED_VARS LLAMA_CPP_INCLUDE_DIR LLAMA_CPP_llama_LIBRARY LLAMA_CPP_ggml_LIBRARY
                  LLAMA_CPP_ggml-base_LIBRARY LLAMA_CPP_CONFIG
    REASON_FAILURE_MESSAGE "looked in ${LLAMA_CPP_DIR} and ${LLAMA_CPP_SITE}")

if(NOT TARGET LlamaCppPython::llama)
    add_library(LlamaCppPython::llama INTERFACE IMPORTED)
    set_target_properties(LlamaCppPython::llama PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${LLAMA_CPP_INCLUDE_DIR}"
        INTERFACE_LINK_LIBRARIES
            "${LLAMA_CPP_llama_LIBRARY};${LLAMA_CPP_ggml_LIBRARY};${LLAMA_CPP_ggml-base_LIBRARY}")
endif()
