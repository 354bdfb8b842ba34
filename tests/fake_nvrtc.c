/* fake_nvrtc.c - a small library in place of libnvrtc.so, opened through CONVJIT_NVRTC. It compiles nothing: its
 * "cubin" is an ELF header of the machine CUDA and a hash of source and options, which fake_driver.c takes.
 *
 * It obeys these variables, read at every call:
 *   FAKE_NVRTC_VERSION      "13.0.88" (default): what nvrtcVersion and the head of the PTX say
 *   FAKE_NVRTC_ARCHS        "75 80 86 89 90 100 120" (default)
 *   FAKE_NVRTC_NO_BUILTINS  set: every compile fails as without libnvrtc-builtins, also that of an empty source
 *   FAKE_NVRTC_FAIL         every compile but that of an empty source fails, with this text as log
 *   FAKE_NVRTC_RESULT       with FAKE_NVRTC_FAIL: the nvrtcResult, instead of NVRTC_ERROR_COMPILATION
 *   FAKE_NVRTC_WARN         log of a compile that succeeds
 *   FAKE_NVRTC_DELAY_MS     how long a compile takes
 *   FAKE_NVRTC_RECORD       a file that gains one line a compile, its options: counts over several processes
 * and exports fake_nvrtc (below), where "compile" never counts that of an empty source.
 *
 * -DFAKE_NVRTC_INCOMPLETE leaves nvrtcGetCUBIN out. */
#include <elf.h>
#include <nvrtc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake_nvrtc.h"

struct _nvrtcProgram {
    char *source;
    uint64_t hash;
    char log[1024];
    char ptx[512];
    int is_ptx;
};

fake_nvrtc_state fake_nvrtc;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *get(const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    return value != NULL ? value : otherwise;
}

/* FNV-1a, 64 bits. */
static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 1099511628211U;
    }
    return hash;
}

static int is_empty(const char *source) {
    return source[strspn(source, " \n")] == '\0';
}

/* ---------------------------------------------------------------- questions */

nvrtcResult nvrtcVersion(int *major, int *minor) {
    return sscanf(get("FAKE_NVRTC_VERSION", "13.0.88"), "%d.%d", major, minor) == 2 ? NVRTC_SUCCESS
                                                                                    : NVRTC_ERROR_INVALID_INPUT;
}

const char *nvrtcGetErrorString(nvrtcResult result) {
    static const char *const names[] = {"NVRTC_SUCCESS",
                                        "NVRTC_ERROR_OUT_OF_MEMORY",
                                        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                        "NVRTC_ERROR_INVALID_INPUT",
                                        "NVRTC_ERROR_INVALID_PROGRAM",
                                        "NVRTC_ERROR_INVALID_OPTION",
                                        "NVRTC_ERROR_COMPILATION",
                                        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"};
    return (size_t)result < sizeof names / sizeof names[0] ? names[result] : "NVRTC_ERROR unknown";
}

/* The numbers of FAKE_NVRTC_ARCHS; their count. */
static int read_archs(int *archs) {
    const char *text = get("FAKE_NVRTC_ARCHS", "75 80 86 89 90 100 120");
    int count = 0;
    int used;
    int arch;
    while (sscanf(text, "%d%n", &arch, &used) == 1) {
        if (archs != NULL) {
            archs[count] = arch;
        }
        count++;
        text += used;
    }
    return count;
}

nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    *count = read_archs(NULL);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *archs) {
    read_archs(archs);
    return NVRTC_SUCCESS;
}

/* ---------------------------------------------------------------- programs */

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int header_count,
                               const char *const *headers, const char *const *include_names) {
    (void)name, (void)header_count, (void)headers, (void)include_names;
    *program = calloc(1, sizeof **program);
    if (*program == NULL || ((*program)->source = strdup(source)) == NULL) {
        free(*program);
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    free((*program)->source);
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

static void record(int option_count, const char *const *options) {
    const char *path = getenv("FAKE_NVRTC_RECORD");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    if (file != NULL) {
        char line[1024] = "";
        for (int i = 0; i < option_count; i++) {
            strncat(line, options[i], sizeof line - strlen(line) - 2);
            strcat(line, i + 1 < option_count ? " " : "\n");
        }
        fputs(line, file); /* one write of a whole line: processes may share the file */
        fclose(file);
    }
}

static void wait_as_told(void) {
    const long milliseconds = strtol(get("FAKE_NVRTC_DELAY_MS", "0"), NULL, 10);
    const struct timespec delay = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&delay, NULL);
}

static void count_start(int option_count, const char *const *options) {
    pthread_mutex_lock(&state_lock);
    fake_nvrtc.compiles++;
    fake_nvrtc.running++;
    if (fake_nvrtc.running > fake_nvrtc.most_running) {
        fake_nvrtc.most_running = fake_nvrtc.running;
    }
    fake_nvrtc.options[0] = '\0';
    for (int i = 0; i < option_count; i++) {
        strncat(fake_nvrtc.options, options[i], sizeof fake_nvrtc.options - strlen(fake_nvrtc.options) - 2);
        strcat(fake_nvrtc.options, "\n");
    }
    record(option_count, options);
    pthread_mutex_unlock(&state_lock);
}

static void count_end(void) {
    pthread_mutex_lock(&state_lock);
    fake_nvrtc.running--;
    pthread_mutex_unlock(&state_lock);
}

/* Notes what kind of output the options ask for; 0 where they name no architecture that exists. */
static int read_architecture(nvrtcProgram program, int option_count, const char *const *options) {
    static const char option[] = "--gpu-architecture=";
    for (int i = 0; i < option_count; i++) {
        if (strncmp(options[i], option, sizeof option - 1) == 0) {
            const char *name = options[i] + sizeof option - 1;
            const int archs_max = 64;
            int archs[64];
            const int count = read_archs(archs);
            int wanted = 0;
            program->is_ptx = strncmp(name, "compute_", 8) == 0;
            sscanf(name, program->is_ptx ? "compute_%d" : "sm_%d", &wanted);
            for (int k = 0; k < count && k < archs_max; k++) {
                if (archs[k] == wanted) {
                    snprintf(program->ptx, sizeof program->ptx,
                             "// Cuda compilation tools, release 0.0, V%s\n.version 8.0\n.target sm_%d\n"
                             ".address_size 64\n",
                             get("FAKE_NVRTC_VERSION", "13.0.88"), wanted);
                    return 1;
                }
            }
        }
    }
    return 0;
}

static nvrtcResult compile(nvrtcProgram program, int option_count, const char *const *options) {
    const char *failure = getenv("FAKE_NVRTC_FAIL");
    if (!read_architecture(program, option_count, options)) {
        snprintf(program->log, sizeof program->log, "fake: error: invalid value for --gpu-architecture (-arch)\n");
        return NVRTC_ERROR_INVALID_OPTION;
    }
    if (getenv("FAKE_NVRTC_NO_BUILTINS") != NULL) {
        snprintf(program->log, sizeof program->log, "fake: error: failed to open libnvrtc-builtins.so.\n");
        return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
    }
    if (failure != NULL && !is_empty(program->source)) {
        snprintf(program->log, sizeof program->log, "%s", failure);
        return (nvrtcResult)strtol(get("FAKE_NVRTC_RESULT", "6"), NULL, 10);
    }
    program->hash = hash_text(14695981039346656037U, program->source);
    for (int i = 0; i < option_count; i++) {
        program->hash = hash_text(program->hash, options[i]);
    }
    snprintf(program->log, sizeof program->log, "%s", get("FAKE_NVRTC_WARN", ""));
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int option_count, const char *const *options) {
    if (is_empty(program->source)) {
        return compile(program, option_count, options);
    }
    count_start(option_count, options);
    wait_as_told();
    const nvrtcResult result = compile(program, option_count, options);
    count_end();
    return result;
}

/* ---------------------------------------------------------------- results */

typedef struct fake_cubin {
    Elf64_Ehdr header;
    uint64_t hash;
} fake_cubin;

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    *size = strlen(program->log) + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    strcpy(log, program->log);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) {
    *size = strlen(program->ptx) + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx) {
    strcpy(ptx, program->ptx);
    return NVRTC_SUCCESS;
}

/* As in NVRTC, there is no cubin where the options ask for PTX. */
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    *size = program->is_ptx ? 0 : sizeof(fake_cubin);
    return NVRTC_SUCCESS;
}

#ifndef FAKE_NVRTC_INCOMPLETE
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin) {
    fake_cubin bytes = {.header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                                   .e_type = ET_EXEC,
                                   .e_machine = EM_CUDA,
                                   .e_version = EV_CURRENT,
                                   .e_ehsize = sizeof(Elf64_Ehdr)},
                        .hash = program->hash};
    memcpy(cubin, &bytes, sizeof bytes);
    return NVRTC_SUCCESS;
}
#endif
