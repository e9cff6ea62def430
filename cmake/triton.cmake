# The Triton backend: the host part in C, and the kernels compiled ahead of time by src/triton/aot.py. Triton is a build
# tool here: neither a GPU nor PyTorch is needed, and nothing of Python at run time. Sets `triton` to ON or OFF.
# SPDX-License-Identifier: Apache-2.0
# AUTO compiles nothing: all kernels for all eight GPUs are some 15 minutes of one processor.
set(RMSNORM_TRITON AUTO CACHE STRING "Kernels in Triton: AUTO (when they are there, compiled before), ON (compile them), OFF")
set_property(CACHE RMSNORM_TRITON PROPERTY STRINGS AUTO ON OFF)
set(RMSNORM_TRITON_TARGETS "sm_80;sm_89;sm_90;sm_100;sm_120;gfx90a;gfx942;gfx950" CACHE STRING
    "GPUs that get Triton kernels")
set(RMSNORM_TRITON_KERNELS "" CACHE STRING "Beginnings of the names of variants to compile (variants.py); empty: all")
set(triton_of_archive "")
if(EXISTS ${PROJECT_SOURCE_DIR}/generated/triton/triton_table.c)
  set(triton_of_archive ${PROJECT_SOURCE_DIR}/generated/triton)
endif()
set(RMSNORM_TRITON_FILES "${triton_of_archive}" CACHE PATH
    "A folder with what an earlier build has generated, used instead of Triton (a release archive has generated/triton)")
set(RMSNORM_TRITON_JOBS "" CACHE STRING "How many kernels are compiled at a time; empty: as many as there are processors")
# aot.py says so, too: the numbers of hidden parameters and the instructions that come out depend on it.
set(triton_version 3.6.0)

set(triton OFF)
set(triton_sources cuda_triton.c hip_triton.c launch_triton.c plan_triton.c values.c)
list(TRANSFORM triton_sources PREPEND src/triton/)
list(APPEND triton_sources src/gpu/hip.c)
set(triton_python_sources src/triton/aot.py src/triton/table.py)
file(GLOB triton_kernels RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS src/triton/rmsnorm_triton/*.py)
list(APPEND triton_python_sources ${triton_kernels})

# The host part with a table that the tests bring.
if(TARGET rmsnorm_hosted)
  add_library(rmsnorm_hosted_triton STATIC ${portable_sources} ${driver_sources} ${triton_sources})
  target_include_directories(rmsnorm_hosted_triton PUBLIC include src)
  target_compile_definitions(rmsnorm_hosted_triton PRIVATE RN_HAVE_TRITON PUBLIC RMSNORM_STATIC)
  target_link_libraries(rmsnorm_hosted_triton PRIVATE rmsnorm_flags PUBLIC m ${CMAKE_DL_LIBS} Threads::Threads)
endif()

# Whether that Python has the pinned Triton; nothing of it is imported for that, which would take seconds.
function(rmsnorm_find_triton)
  find_program(RMSNORM_TRITON_PYTHON NAMES python3 DOC "The Python with Triton ${triton_version}")
  set(found "no Python was found when it was made")
  if(RMSNORM_TRITON_PYTHON)
    execute_process(COMMAND ${RMSNORM_TRITON_PYTHON} -c "import importlib.metadata as m; print(m.version('triton'))"
                    OUTPUT_VARIABLE version ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT version) # a build of it for one maker's GPUs goes by another name
      execute_process(COMMAND ${RMSNORM_TRITON_PYTHON} -c "import triton; print(triton.__version__)"
                      OUTPUT_VARIABLE version ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
    string(REGEX REPLACE "\\+.*" "" version "${version}")
    if(version STREQUAL triton_version)
      set(found "")
    elseif(version)
      set(found "Triton ${version} was found when it was made, ${triton_version} is wanted")
    else()
      set(found "Triton ${triton_version} was not found when it was made")
    endif()
  endif()
  set(no_triton "${found}" PARENT_SCOPE)
endfunction()

set(no_triton "")
if(RMSNORM_TRITON STREQUAL OFF)
  set(no_triton "it was made with RMSNORM_TRITON=OFF")
elseif(NOT CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(no_triton "it was not made for Linux")
elseif(RMSNORM_TRITON_FILES)
  if(NOT EXISTS ${RMSNORM_TRITON_FILES}/triton_table.c)
    set(no_triton "RMSNORM_TRITON_FILES has no triton_table.c")
  endif()
elseif(RMSNORM_TRITON STREQUAL AUTO)
  set(no_triton "it was made without RMSNORM_TRITON=ON")
else()
  rmsnorm_find_triton()
endif()
if(no_triton)
  if(RMSNORM_TRITON STREQUAL ON)
    message(FATAL_ERROR "RMSNORM_TRITON is ON, but ${no_triton}")
  endif()
  target_compile_definitions(rmsnorm_objects PRIVATE RN_NO_TRITON="${no_triton}")
  return()
endif()
set(triton ON)

# ---------------------------------------------------------------------------------------------------------------------
# What is generated.
set(triton_folder ${PROJECT_BINARY_DIR}/triton)
if(RMSNORM_TRITON_FILES)
  set(triton_folder ${RMSNORM_TRITON_FILES})
else()
  list(JOIN RMSNORM_TRITON_TARGETS "," targets)
  set(more "")
  if(RMSNORM_TRITON_JOBS)
    list(APPEND more --jobs ${RMSNORM_TRITON_JOBS})
  endif()
  if(RMSNORM_TRITON_KERNELS)
    list(JOIN RMSNORM_TRITON_KERNELS "," kernels)
    list(APPEND more --kernels ${kernels})
  endif()
  list(TRANSFORM triton_python_sources PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE triton_dependencies)
  add_custom_command(OUTPUT ${triton_folder}/triton_table.c BYPRODUCTS ${triton_folder}/manifest.json
    COMMAND ${RMSNORM_TRITON_PYTHON} ${PROJECT_SOURCE_DIR}/src/triton/aot.py --out ${triton_folder} --targets ${targets}
            ${more}
    COMMAND ${RMSNORM_TRITON_PYTHON} ${PROJECT_SOURCE_DIR}/src/triton/table.py ${triton_folder}
    DEPENDS ${triton_dependencies}
    COMMENT "Compiling the Triton kernels for ${RMSNORM_TRITON_TARGETS}"
    VERBATIM)
endif()
add_custom_target(triton_files DEPENDS ${triton_folder}/triton_table.c)

# ---------------------------------------------------------------------------------------------------------------------
# The host part.
find_package(Threads REQUIRED)
target_compile_definitions(rmsnorm_objects PRIVATE RN_HAVE_TRITON)
target_link_libraries(rmsnorm_objects PRIVATE Threads::Threads)
set_source_files_properties(${triton_folder}/triton_table.c PROPERTIES
  COMPILE_DEFINITIONS RN_TRITON_FOLDER="${triton_folder}" INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/src/triton)
list(APPEND sources ${triton_sources} ${triton_folder}/triton_table.c)
if(NOT cuda)
  list(APPEND sources ${driver_sources})
endif()
