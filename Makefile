# A thin front for CMake: make help lists what it can do. Everything is built in build/.
# SPDX-License-Identifier: Apache-2.0
BUILD  ?= build
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
CMAKE_ARGS ?=
# Kernels for NVIDIA GPUs: AUTO (when there is an nvcc), ON, OFF.
CUDA   ?= AUTO
# Kernels in Triton, for NVIDIA and AMD GPUs: AUTO (when python3 has the pinned version), ON, OFF.
TRITON ?= AUTO

NEED       = scripts/need.sh build-essential=cc build-essential=make cmake=cmake
NEED_TESTS = $(NEED) libcmocka-dev=/usr/include/cmocka.h
CTEST      = ctest --output-on-failure -j$(JOBS) --test-dir

.PHONY: all demo test check bench gpu-test gpu-bench amd-test dist install sanitize sanitize-memory sanitize-thread cross plain format format-check lint clean help

all: ## build the library and the command
	@$(NEED)
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DRMSNORM_CUDA=$(CUDA) -DRMSNORM_TRITON=$(TRITON) $(CMAKE_ARGS)
	cmake --build $(BUILD) -j$(JOBS)

# The demo runs on the CPU: no kernels for GPUs are built for it.
demo: ## normalise real hidden states and compare with the model's own code
	@$(NEED)
	cmake -S . -B $(BUILD) -DRMSNORM_TESTS=OFF -DRMSNORM_CUDA=OFF -DRMSNORM_TRITON=OFF $(CMAKE_ARGS)
	cmake --build $(BUILD) -j$(JOBS)
	demo/run.sh $(BUILD)/rmsnorm

test: ## build and run the tests
	@$(NEED_TESTS)
	cmake -S . -B $(BUILD) -DRMSNORM_TESTS=ON -DRMSNORM_CUDA=$(CUDA) -DRMSNORM_TRITON=$(TRITON) $(CMAKE_ARGS)
	cmake --build $(BUILD) -j$(JOBS)
	$(CTEST) $(BUILD)

check: all ## compare every implementation on this machine with the portable one and with float64
	$(BUILD)/rmsnorm check

bench: all ## time the implementations beside a copy of the same bytes
	$(BUILD)/rmsnorm bench

gpu-test: all ## compare the CUDA kernels with the portable implementation, on this machine's GPU
	$(BUILD)/rmsnorm check --device cuda

gpu-bench: all ## time the CUDA kernels beside the best copy of the same bytes, on this machine's GPU
	$(BUILD)/rmsnorm bench --device cuda

# What an owner of an AMD GPU runs to prove what could only be compiled and inspected here. Kernels out of a release
# archive are taken where there are some; else they are compiled, which wants Triton (pip install triton==3.6.0).
amd-test: ## compare the Triton kernels with the portable implementation, on this machine's AMD GPU
	@$(NEED)
	cmake -S . -B $(BUILD)-amd -DRMSNORM_CUDA=OFF -DRMSNORM_TRITON=ON -DRMSNORM_TESTS=OFF \
	  "-DRMSNORM_TRITON_TARGETS=gfx90a;gfx942;gfx950" $(CMAKE_ARGS)
	cmake --build $(BUILD)-amd -j$(JOBS)
	$(BUILD)-amd/rmsnorm info
	$(BUILD)-amd/rmsnorm check --device hip

dist: ## make a release archive, with the generated Triton kernels in it
	@$(NEED)
	cmake -S . -B $(BUILD)-dist -DRMSNORM_CUDA=OFF -DRMSNORM_TRITON=ON -DRMSNORM_TESTS=OFF $(CMAKE_ARGS)
	cmake --build $(BUILD)-dist --target triton_files
	scripts/dist.sh $(BUILD)-dist/triton $(BUILD)-dist

install: all ## install to PREFIX (default /usr/local)
	cmake --install $(BUILD)

sanitize: sanitize-memory sanitize-thread ## run the tests under the sanitizers

# Warnings are no errors here: instrumented code makes gcc warn of what is not there (maybe-uninitialized).
sanitize-memory:
	@$(NEED_TESTS)
	cmake -S . -B $(BUILD)-asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRMSNORM_SANITIZE=address,undefined \
	  -DRMSNORM_CUDA=OFF $(CMAKE_ARGS)
	cmake --build $(BUILD)-asan -j$(JOBS)
	$(CTEST) $(BUILD)-asan

# The OpenMP runtime was not built for the thread sanitizer, which reports its barriers: threads come from the tests'
# own parallel-for here. Only what runs more than one thread is run: the rest can not race.
sanitize-thread:
	@$(NEED_TESTS)
	cmake -S . -B $(BUILD)-tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRMSNORM_SANITIZE=thread -DRMSNORM_OPENMP=OFF \
	  -DRMSNORM_CUDA=OFF $(CMAKE_ARGS)
	cmake --build $(BUILD)-tsan -j$(JOBS)
	$(CTEST) $(BUILD)-tsan -R "test_host|test_args|test_descriptors|test_cuda_host|test_triton_host|test_hip_host|example_"
	$(BUILD)-tsan/rmsnorm check --quick --case threads
	for i in 6 7 18 26 34; do $(BUILD)-tsan/rmsnorm check --case large/$$i || exit; done

cross: ## build for 64-bit Arm and run the check under qemu
	@$(NEED) gcc-aarch64-linux-gnu=aarch64-linux-gnu-gcc libc6-dev-arm64-cross=/usr/aarch64-linux-gnu/include/stdio.h \
	  qemu-user=qemu-aarch64
	cmake -S . -B $(BUILD)-aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DRMSNORM_WERROR=ON $(CMAKE_ARGS)
	cmake --build $(BUILD)-aarch64 -j$(JOBS)
	$(CTEST) $(BUILD)-aarch64
	qemu-aarch64 -L /usr/aarch64-linux-gnu $(BUILD)-aarch64/rmsnorm check --smoke

plain: ## build the portable sources with nothing but a C compiler
	mkdir -p $(BUILD)
	cc -std=c11 -Iinclude -DRMSNORM_STATIC examples/forward.c src/*.c -lm -o $(BUILD)/plain
	$(BUILD)/plain

SOURCES = $(wildcard include/*.h src/*.[ch] src/cpu/*.[ch] src/cuda/*.[ch] src/cuda/*.cu src/gpu/*.[ch] src/triton/*.[ch] cli/*.[ch] tests/*.[ch] \
                     tests/emulator/*.[ch] tests/emulator/*.cpp tests/install/*.c examples/*.c examples/*.cpp)

format: ## bring every source file into the one format
	@scripts/need.sh clang-format=clang-format
	clang-format -i $(SOURCES)

format-check:
	@scripts/need.sh clang-format=clang-format
	clang-format --dry-run --Werror $(SOURCES)

lint: ## look for faults without running anything
	@scripts/need.sh cppcheck=cppcheck
	cppcheck --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 --quiet \
	  --suppressions-list=cmake/cppcheck.txt -j$(JOBS) -Iinclude -Isrc src/*.c src/cuda/[!i]*.c src/gpu/*.c src/triton/*.c cli/*.c

clean: ## remove what was built
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-aarch64

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
