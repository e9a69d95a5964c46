# ngx_agent_module: everything is built below build/.
#
#   make deps      install what building and running need (Debian 12)
#   make           the dynamic module: build/ngx_http_agent_module.so
#   make run       deps, build, nginx in the foreground on 127.0.0.1:8080;
#                  CONF=file instead of examples/demo.conf
#   make test      test-deps, lint, unit tests, then t/*.t with a real nginx
#   make asan      the same tests with a sanitizer build of nginx, and those of
#                  t/fault: allocations that fail
#   make fuzz      libFuzzer on the core, FUZZ_SECONDS (60) for each target
#   make install   copy the module into nginx's module directory
#
# NGINX_SRC=dir builds against an nginx source tree instead of nginx-dev.

SHELL    := /bin/bash
ROOT     := $(CURDIR)
BUILD    := $(ROOT)/build
MODULE   := $(BUILD)/ngx_http_agent_module.so
CC       ?= cc

# folder of recorded provider streams for the corpus tests
AGENT_CORPUS ?= ../shared/corpus

# scale of the stress tests: 1 in make test, 50 in make soak
AGENT_SCALE  ?= 1

CORE_SRCS := $(sort $(wildcard src/*.c))
CORE_OBJS := $(CORE_SRCS:src/%.c=$(BUILD)/core/%.o)
CORE_LIB  := $(BUILD)/core/libagent.a
CORE_ASAN := $(BUILD)/core-asan/libagent.a
GLUE_SRCS := $(sort $(wildcard ngx_agent_module/*.c))
HDRS      := $(wildcard src/*.h ngx_agent_module/*.h)

CORE_WARN   := -std=c11 -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes \
               -Wpointer-arith -Werror
CORE_CFLAGS := -O2 -g $(CORE_WARN)
ASAN_CFLAGS := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
               -fno-omit-frame-pointer $(CORE_WARN)

UNIT_SRCS := $(sort $(wildcard t/unit/test_*.c))
UNIT_BINS := $(UNIT_SRCS:t/unit/%.c=$(BUILD)/unit/%.t)
UNIT_ASAN := $(UNIT_SRCS:t/unit/%.c=$(BUILD)/unit-asan/%.t)

.PHONY: all deps test-deps npm-deps run test test-bins test-core test-module \
        asan soak lint fmt install clean fuzz fuzz-seeds

all: $(MODULE)

# --- what a bare machine needs ------------------------------------------------

DEB_BUILD := gcc make libc6-dev nginx nginx-dev libcurl4-openssl-dev \
             libjansson-dev libhiredis-dev libssl-dev zlib1g-dev \
             libpcre2-dev dpkg-dev ca-certificates curl
DEB_TEST  := perl libmojolicious-perl libio-socket-ssl-perl openssl \
             libprotocol-http2-perl python3-prometheus-client chromium \
             clang-format cppcheck git patch \
             clang libclang-rt-14-dev

deps:
	@t/deps.sh $(DEB_BUILD)

test-deps:
	@t/deps.sh $(DEB_BUILD) $(DEB_TEST)

npm-deps: test-deps
	@t/npm-deps.sh t/npm $(BUILD)/npm

# --- the module ---------------------------------------------------------------

NGINX_DEV := /usr/share/nginx/src

# configured anew when a source file comes or goes
SOURCES := $(CORE_SRCS) $(GLUE_SRCS) $(NGINX_SRC)
$(shell mkdir -p $(BUILD); echo "$(SOURCES)" | cmp -s - $(BUILD)/sources || \
        echo "$(SOURCES)" > $(BUILD)/sources)

$(BUILD)/nginx/Makefile: config build-nginx.sh Makefile $(BUILD)/sources
	./build-nginx.sh configure "$(BUILD)/nginx" "$(NGINX_SRC)"

$(MODULE): $(BUILD)/nginx/Makefile $(CORE_SRCS) $(GLUE_SRCS) $(HDRS)
	./build-nginx.sh make "$(BUILD)/nginx" "$(NGINX_SRC)"
	cp $(BUILD)/nginx/ngx_http_agent_module.so $(MODULE).new
	mv $(MODULE).new $(MODULE)   # a running nginx may have the old one mapped

run: deps
	$(MAKE) all
	examples/run.sh $(BUILD) $(CONF)

MODULES_DIR ?= /usr/lib/nginx/modules

install: all
	install -d $(DESTDIR)$(MODULES_DIR)
	install -m 644 $(MODULE) $(DESTDIR)$(MODULES_DIR)/

# --- the core, alone ----------------------------------------------------------

$(BUILD)/core/%.o: src/%.c $(wildcard src/*.h)
	@mkdir -p $(@D)
	$(CC) $(CORE_CFLAGS) -Isrc -c -o $@ $<

$(CORE_LIB): $(CORE_OBJS)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/unit/%.t: t/unit/%.c $(CORE_LIB) $(wildcard t/unit/*.h)
	@mkdir -p $(@D)
	$(CC) $(CORE_CFLAGS) -Wno-conversion \
	    -Wno-missing-field-initializers -Isrc -It/unit -o $@ $< $(CORE_LIB) -ljansson -lm

$(BUILD)/core-asan/%.o: src/%.c $(wildcard src/*.h)
	@mkdir -p $(@D)
	$(CC) $(ASAN_CFLAGS) -Isrc -c -o $@ $<

$(CORE_ASAN): $(CORE_SRCS:src/%.c=$(BUILD)/core-asan/%.o)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/unit-asan/%.t: t/unit/%.c $(CORE_ASAN) $(wildcard t/unit/*.h)
	@mkdir -p $(@D)
	$(CC) $(ASAN_CFLAGS) -Wno-conversion \
	    -Wno-missing-field-initializers -Isrc -It/unit -o $@ $< $(CORE_ASAN) -ljansson -lm

# --- tests --------------------------------------------------------------------

export AGENT_CORPUS AGENT_SCALE

test: npm-deps
	$(MAKE) all lint
	$(MAKE) -j$$(nproc) test-bins $(HOOK_MODULE)
	$(MAKE) test-core
	$(MAKE) test-module

test-bins: $(UNIT_BINS) $(UNIT_ASAN)

test-core: test-bins
	prove --timer -j2 $(UNIT_BINS) $(UNIT_ASAN)

# the module again, where a test can end a worker between any two stores into a
# zone
HOOK_MODULE := $(BUILD)/hook/ngx_http_agent_module.so
HOOK_OBJ    := $(BUILD)/hook/hook.o
HOOK_FLAGS  := -DAGENT_ZONE_HOOK

$(HOOK_OBJ): t/hook/hook.c src/agent_zone.h
	@mkdir -p $(@D)
	$(CC) -O2 -g -fPIC $(CORE_WARN) $(HOOK_FLAGS) -Isrc -c -o $@ $<

$(BUILD)/hook/Makefile: config build-nginx.sh Makefile $(BUILD)/sources \
                        $(HOOK_OBJ)
	AGENT_CFLAGS="$(HOOK_FLAGS)" AGENT_LDFLAGS="$(HOOK_OBJ)" \
	./build-nginx.sh configure "$(BUILD)/hook" "$(NGINX_SRC)"

$(HOOK_MODULE): $(BUILD)/hook/Makefile $(CORE_SRCS) $(GLUE_SRCS) $(HDRS)
	./build-nginx.sh make "$(BUILD)/hook" "$(NGINX_SRC)"

test-module: $(MODULE) $(HOOK_MODULE)
	prove --timer -j2 -It/lib t/*.t

# nginx from Debian's source with the module inside, ASan, UBSan and pools of
# separate allocations, running the same tests
ASAN_NGINX := $(BUILD)/asan/nginx
ASAN_FLAGS := -O1 -g -fsanitize=address,undefined \
              -fno-sanitize=alignment,nonnull-attribute \
              -fno-omit-frame-pointer -DNGX_DEBUG_PALLOC=1

$(BUILD)/nginx-src/version:
	t/nginx-source.sh $(BUILD)/nginx-src

# each allocation of nginx, the glue and the core can be made to fail
FAULT_OBJ  := $(BUILD)/asan/fault.o
ASAN_OBJS  := $(FAULT_OBJ) $(BUILD)/asan/hook.o
FAULT_WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc \
              -Wl,--wrap=memalign,--wrap=posix_memalign

$(FAULT_OBJ): t/fault/fault.c
	@mkdir -p $(@D)
	$(CC) -O1 -g -fno-omit-frame-pointer $(CORE_WARN) -c -o $@ $<

$(BUILD)/asan/hook.o: t/hook/hook.c src/agent_zone.h
	@mkdir -p $(@D)
	$(CC) -O1 -g -fno-omit-frame-pointer $(CORE_WARN) $(HOOK_FLAGS) -Isrc -c \
	    -o $@ $<

$(BUILD)/asan/Makefile: $(BUILD)/nginx-src/version config Makefile \
                        $(BUILD)/sources | $(ASAN_OBJS)
	cd $(BUILD)/nginx-src/nginx && ./configure --prefix=$(BUILD)/asan \
	    --with-debug --with-threads --with-http_ssl_module \
	    --with-http_v2_module --with-http_auth_request_module \
	    --with-http_realip_module --with-cc-opt="$(ASAN_FLAGS) $(HOOK_FLAGS)" \
	    --with-ld-opt="-fsanitize=address,undefined $(FAULT_WRAP) $(ASAN_OBJS)" \
	    --add-module=$(ROOT) --builddir=$(BUILD)/asan \
	    > $(BUILD)/asan/configure.log

$(ASAN_NGINX): $(BUILD)/asan/Makefile $(ASAN_OBJS) $(CORE_SRCS) $(GLUE_SRCS) \
               $(HDRS)
	rm -f $@          # nginx's makefile does not know of the objects above
	$(MAKE) -s -C $(BUILD)/nginx-src/nginx -f $(BUILD)/asan/Makefile

asan: npm-deps
	$(MAKE) -j$$(nproc) $(ASAN_NGINX)
	TEST_NGINX_BINARY=$(ASAN_NGINX) AGENT_STATIC=1 \
	ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 \
	UBSAN_OPTIONS=print_stacktrace=1 \
	prove --timer -j2 -It/lib t/fault/*.t t/*.t

soak: $(MODULE) $(HOOK_MODULE)
	AGENT_SCALE=50 prove --timer -v -It/lib t/*.t

# --- fuzzing ------------------------------------------------------------------

# seconds for each target
FUZZ_SECONDS ?= 60
FUZZ_CC      ?= clang

FUZZ_SRCS  := $(sort $(wildcard t/fuzz/fuzz_*.c))
FUZZ_BINS  := $(FUZZ_SRCS:t/fuzz/%.c=$(BUILD)/fuzz/%)
FUZZ_SEEDS := $(FUZZ_SRCS:t/fuzz/%.c=$(BUILD)/fuzz-seeds/%)
FUZZ_CORE  := $(BUILD)/fuzz/core/libagent.a

$(BUILD)/fuzz/core/%.o: src/%.c $(wildcard src/*.h)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(ASAN_CFLAGS) -fsanitize=fuzzer-no-link -Isrc -c -o $@ $<

$(FUZZ_CORE): $(CORE_SRCS:src/%.c=$(BUILD)/fuzz/core/%.o)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/fuzz/%: t/fuzz/%.c $(wildcard src/*.h t/unit/*.h) $(FUZZ_CORE)
	$(FUZZ_CC) $(ASAN_CFLAGS) -fsanitize=fuzzer -Wno-conversion \
	    -Wno-missing-field-initializers -Isrc -It/unit \
	    -o $@ $< $(FUZZ_CORE) -ljansson -lm

$(BUILD)/fuzz-seeds/%: t/fuzz/%.c t/fuzz/main.c $(wildcard src/*.h t/unit/*.h) \
                       $(CORE_ASAN)
	@mkdir -p $(@D)
	$(CC) $(ASAN_CFLAGS) -Wno-conversion \
	    -Wno-missing-field-initializers -Isrc -It/unit -o $@ $< t/fuzz/main.c \
	    $(CORE_ASAN) -ljansson -lm

fuzz-seeds: $(FUZZ_SEEDS)

fuzz: test-deps
	$(MAKE) -j$$(nproc) $(FUZZ_BINS)
	t/fuzz.sh $(BUILD)/fuzz $(FUZZ_SECONDS)

lint:
	clang-format --dry-run --Werror src/*.[ch] t/unit/*.[ch]
	cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability \
	    --inline-suppr --suppress=missingIncludeSystem -Isrc src/*.c
	t/lint.sh

fmt:
	clang-format -i src/*.[ch] t/unit/*.[ch]

clean:
	rm -rf $(BUILD)
