# What `pip install .` builds when nothing else is asked for: what this machine can run. Kernels for all architectures
# take many minutes, so that a GPU gets its own alone, and a machine without one none. For the others:
#   pip install . -C cmake.define.RMSNORM_CUDA=ON                                    every architecture
#   pip install . -C cmake.define.RMSNORM_CUDA=ON -C cmake.define.RMSNORM_CUDA_ARCHS=90
#   pip install . -C cmake.define.RMSNORM_CUDA_IMAGES=/folder                        kernels of an earlier build
# SPDX-License-Identifier: Apache-2.0
set(RMSNORM_PYTHON ON)
# Kernels made with Triton, for AMD GPUs, in the same way: where they are asked for.
if(NOT DEFINED CACHE{RMSNORM_TRITON} AND NOT DEFINED CACHE{RMSNORM_TRITON_FILES})
  set(RMSNORM_TRITON OFF CACHE STRING "")
endif()
if(DEFINED CACHE{RMSNORM_CUDA} OR DEFINED CACHE{RMSNORM_CUDA_IMAGES})
  return()
endif()

find_program(RMSNORM_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
             PATHS /usr/local/cuda /opt/cuda DOC "The CUDA compiler")
find_program(nvidia_smi nvidia-smi)
set(found "")
if(nvidia_smi)
  execute_process(COMMAND ${nvidia_smi} --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${answer}")
    string(REPLACE "." "" found "${found}")
    list(REMOVE_DUPLICATES found)
  endif()
endif()
if(RMSNORM_NVCC AND found)
  set(RMSNORM_CUDA ON CACHE STRING "")
  set(RMSNORM_CUDA_ARCHS "${found}" CACHE STRING "")
  set(RMSNORM_CUDA_PTX "" CACHE STRING "")
  message(STATUS "The wheel gets kernels for the GPUs of this machine: ${found}")
else()
  set(RMSNORM_CUDA OFF CACHE STRING "")
  message(STATUS "The wheel is for the CPU: no NVIDIA GPU, or no nvcc, on this machine (cmake/wheel.cmake says how else)")
endif()
