# The Python package: the extension module on the stable ABI, beside the Python files and the shared library. Built by
# `pip install .` (pyproject.toml) or, for a tree that runs from where it was built, with RMSNORM_PYTHON=ON: then
# PYTHONPATH=<build>/python is enough.
# SPDX-License-Identifier: Apache-2.0
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

Python_add_library(rmsnorm_python MODULE python/rmsnorm/native.c)
target_compile_definitions(rmsnorm_python PRIVATE Py_LIMITED_API=0x030A0000)
target_link_libraries(rmsnorm_python PRIVATE rmsnorm rmsnorm_flags)
set(python_tree ${PROJECT_BINARY_DIR}/python/rmsnorm)
set_target_properties(rmsnorm_python PROPERTIES
  PREFIX "" OUTPUT_NAME _native SUFFIX .abi3.so LIBRARY_OUTPUT_DIRECTORY ${python_tree} INSTALL_RPATH "$ORIGIN")
# Headers of Python are not ours to warn about.
get_target_property(python_headers Python::Module INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(rmsnorm_python SYSTEM PRIVATE ${python_headers})

file(GLOB_RECURSE modules RELATIVE ${PROJECT_SOURCE_DIR}/python/rmsnorm CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/python/rmsnorm/*.py)
foreach(module ${modules})
  get_filename_component(folder ${module} DIRECTORY)
  file(MAKE_DIRECTORY ${python_tree}/${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/rmsnorm/${module} ${python_tree}/${module} SYMBOLIC)
endforeach()

# In a wheel there are no symbolic links: the one file that the extension asks for, under the name it asks for.
install(TARGETS rmsnorm_python LIBRARY DESTINATION rmsnorm COMPONENT python EXCLUDE_FROM_ALL)
install(PROGRAMS $<TARGET_FILE:rmsnorm> DESTINATION rmsnorm RENAME $<TARGET_SONAME_FILE_NAME:rmsnorm>
        COMPONENT python EXCLUDE_FROM_ALL)

# With pytest, and NumPy; the tests that need torch are skipped without it.
if(RMSNORM_TESTS)
  add_test(NAME python COMMAND ${Python_EXECUTABLE} -m pytest -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/python/tests)
  set_tests_properties(python PROPERTIES
    ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1")
endif()
