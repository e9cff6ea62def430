# The CUDA backend: the host part in C, and one image of device code for each family of kernels. nvcc is called as a
# tool; CMake's CUDA language, which wants a toolkit with libraries, is not needed. Sets `cuda` to ON or OFF.
# SPDX-License-Identifier: Apache-2.0
set(RMSNORM_CUDA AUTO CACHE STRING "Kernels for NVIDIA GPUs: AUTO (when nvcc is found), ON, OFF")
set_property(CACHE RMSNORM_CUDA PROPERTY STRINGS AUTO ON OFF)
set(RMSNORM_CUDA_ARCHS "80;89;90;100;120" CACHE STRING "Compute capabilities that get machine code")
set(RMSNORM_CUDA_PTX "80" CACHE STRING "Compute capabilities that get PTX, for later GPUs; empty: none")
set(RMSNORM_KERNELS "" CACHE STRING "Families of kernels to build (src/cuda/kernels.h); empty: all")
set(RMSNORM_CUDA_IMAGES "" CACHE PATH "A folder with FAMILY.fatbin of an earlier build, used instead of nvcc")

set(cuda OFF)
set(all_families general forward quantise backward)
set(cuda_sources cuda.c loader.c plan.c)
foreach(family ${all_families})
  list(APPEND cuda_sources plan_${family}.c)
endforeach()
list(TRANSFORM cuda_sources PREPEND src/cuda/)
set(driver_sources src/gpu/cuda_driver.c)

# The host part with images that the tests bring: it is tested on machines without nvcc, too.
if(RMSNORM_TESTS AND CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(hosted_sources ${sources} ${cuda_sources} ${driver_sources})
  list(FILTER hosted_sources EXCLUDE REGEX "src/cpu/")
  find_package(Threads REQUIRED)
  add_library(rmsnorm_hosted STATIC ${hosted_sources})
  target_include_directories(rmsnorm_hosted PUBLIC include src)
  target_compile_definitions(rmsnorm_hosted PRIVATE RN_HAVE_CUDA PUBLIC RMSNORM_STATIC)
  target_link_libraries(rmsnorm_hosted PRIVATE rmsnorm_flags PUBLIC m ${CMAKE_DL_LIBS} Threads::Threads)
endif()

# nvcc of PATH, of CUDACXX, or of a usual place, and the program beside it that puts its outputs into one image.
function(rmsnorm_find_nvcc)
  find_program(RMSNORM_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
               PATHS /usr/local/cuda /opt/cuda DOC "The CUDA compiler")
  if(RMSNORM_NVCC)
    get_filename_component(beside ${RMSNORM_NVCC} REALPATH)
    get_filename_component(beside ${beside} DIRECTORY)
    find_program(RMSNORM_FATBINARY fatbinary HINTS ${beside} DOC "The program of the CUDA toolkit that makes images")
  endif()
endfunction()

if(RMSNORM_CUDA STREQUAL OFF)
  set(no_cuda "it was made with RMSNORM_CUDA=OFF")
elseif(NOT CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(no_cuda "it was not made for Linux")
elseif(RMSNORM_CUDA_IMAGES)
  set(cuda ON)
elseif(CMAKE_CROSSCOMPILING AND RMSNORM_CUDA STREQUAL AUTO)
  set(no_cuda "it was cross-compiled without RMSNORM_CUDA=ON")
else()
  rmsnorm_find_nvcc()
  if(RMSNORM_NVCC AND RMSNORM_FATBINARY)
    set(cuda ON)
  elseif(RMSNORM_NVCC)
    set(no_cuda "fatbinary was not found beside nvcc when it was made")
  else()
    set(no_cuda "nvcc was not found when it was made")
  endif()
endif()
if(NOT cuda)
  if(RMSNORM_CUDA STREQUAL ON)
    message(FATAL_ERROR "RMSNORM_CUDA is ON, but ${no_cuda}")
  endif()
  target_compile_definitions(rmsnorm_objects PRIVATE RN_NO_CUDA="${no_cuda}")
  return()
endif()

set(families ${RMSNORM_KERNELS})
if(NOT families)
  set(families ${all_families})
endif()
foreach(family ${families})
  if(NOT family IN_LIST all_families)
    message(FATAL_ERROR "RMSNORM_KERNELS: there is no family ${family}; there are ${all_families}")
  endif()
endforeach()
set(built "")
foreach(family ${all_families})
  if(family IN_LIST families)
    list(APPEND built ${family})
  endif()
endforeach()

# ---------------------------------------------------------------------------------------------------------------------
# The images.
set(image_folder ${PROJECT_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${image_folder})
if(RMSNORM_CUDA_IMAGES)
  set(image_folder ${RMSNORM_CUDA_IMAGES})
endif()

# Contraction, approximate division and flushed subnormals would be other bits than those of docs/numerics.md.
set(nvcc_flags -std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -Xptxas=-v)
if(RMSNORM_WERROR)
  list(APPEND nvcc_flags -Werror=all-warnings)
endif()

# rmsnorm_image(name architectures): cuda/name.fatbin out of src/cuda/name.cu, with machine code for every one of them and
# PTX. Each is a job of its own, so that all processors are used and no more than the build was told, and has its
# assembler's report beside it, which scripts/kernels.sh reads.
# Machine code for an architecture that has PTX, too, is assembled from that: nvcc would make the same on its way.
function(rmsnorm_image name architectures)
  set(parts "")
  set(images "")
  list(TRANSFORM RMSNORM_CUDA_PTX APPEND -ptx OUTPUT_VARIABLE ptx)
  foreach(target ${architectures} ${ptx})
    if(target MATCHES "^([0-9]+)-ptx$")
      set(arch ${CMAKE_MATCH_1})
      set(part ${image_folder}/${name}.${arch}.ptx)
      set(output -ptx -gencode=arch=compute_${arch},code=compute_${arch})
      set(kind ptx)
    else()
      set(arch ${target})
      set(part ${image_folder}/${name}.${arch}.cubin)
      set(output -cubin -gencode=arch=compute_${arch},code=sm_${arch})
      set(kind elf)
    endif()
    set(source ${PROJECT_SOURCE_DIR}/src/cuda/${name}.cu)
    set(include -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -MD -MF ${part}.d -MT ${part})
    set(depfile DEPFILE ${part}.d)
    if(kind STREQUAL elf AND arch IN_LIST RMSNORM_CUDA_PTX)
      set(source ${image_folder}/${name}.${arch}.ptx)
      set(include "")
      set(depfile "")
    endif()
    add_custom_command(OUTPUT ${part} BYPRODUCTS ${part}.report
      COMMAND ${PROJECT_SOURCE_DIR}/scripts/nvcc.sh ${part}.report
              ${RMSNORM_NVCC} ${nvcc_flags} ${output} ${include} -o ${part} ${source}
      DEPENDS ${source} ${PROJECT_SOURCE_DIR}/scripts/nvcc.sh
      ${depfile}
      COMMENT "Compiling the kernels of ${name} for ${target}"
      VERBATIM)
    list(APPEND parts ${part})
    list(APPEND images --image3=kind=${kind},sm=${arch},file=${part})
  endforeach()
  add_custom_command(OUTPUT ${image_folder}/${name}.fatbin
    COMMAND ${RMSNORM_FATBINARY} -64 --create=${image_folder}/${name}.fatbin ${images}
    DEPENDS ${parts}
    COMMENT "Putting together the kernels of ${name}"
    VERBATIM)
endfunction()

# What sm_89 has beside sm_80, whose code runs there, are fp8 conversions; it would be a sixth of the build.
set(families_without_fp8 forward backward)
set(images "")
foreach(family ${built})
  list(APPEND images ${image_folder}/${family}.fatbin)
  set(archs ${RMSNORM_CUDA_ARCHS})
  if(family IN_LIST families_without_fp8 AND "80" IN_LIST archs)
    list(REMOVE_ITEM archs 89)
  endif()
  if(NOT RMSNORM_CUDA_IMAGES)
    rmsnorm_image(${family} "${archs}")
  endif()
endforeach()
list(TRANSFORM built REPLACE "(.+)" "X(\\1)" OUTPUT_VARIABLE calls)
list(JOIN calls " " calls)
# 90a counts as 90.
string(REGEX REPLACE "[a-z]" "" capabilities "${RMSNORM_CUDA_ARCHS}")
list(TRANSFORM capabilities APPEND ",")
list(JOIN capabilities " " capabilities)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda/built_families.h CONTENT
"/* Made by cmake/cuda.cmake. */
#define RN_BUILT_FAMILIES(X) @calls@
#define RN_BUILT_CAPABILITIES @capabilities@
#define RN_IMAGE_FOLDER \"@image_folder@\"
" @ONLY)
set_source_files_properties(src/cuda/images.c PROPERTIES OBJECT_DEPENDS "${images}")

# ---------------------------------------------------------------------------------------------------------------------
# The host part.
find_package(Threads REQUIRED)
target_compile_definitions(rmsnorm_objects PRIVATE RN_HAVE_CUDA)
target_include_directories(rmsnorm_objects PRIVATE ${PROJECT_BINARY_DIR}/cuda)
target_link_libraries(rmsnorm_objects PRIVATE Threads::Threads)
list(APPEND sources ${cuda_sources} ${driver_sources} src/cuda/images.c)
