#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

/* Every compute capability from 7.0 that a release of CUDA 12 or 13 builds for, and the suffixes it may carry (CUDA
 * programming guide, "Feature set compiler targets"): 'a' adds the features of exactly this chip, 'f' those of its
 * family. A suffix is part of the target: code for sm_90a does not run on a chip that only sm_90 code runs on. */
static const struct {
    int capability;
    const char *suffixes;
} known[] = {
    {70, ""},  {72, ""},    {75, ""},    {80, ""},    {86, ""},    {87, ""},    {88, ""},    {89, ""},
    {90, "a"}, {100, "af"}, {101, "af"}, {103, "af"}, {110, "af"}, {120, "af"}, {121, "af"},
};
enum { KNOWN = sizeof known / sizeof known[0], OLDEST = 70 };

static const char rule[] = "must be cpu or one of sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, "
                           "sm_90a, or sm_100, sm_101, sm_103, sm_110, sm_120, sm_121, each also with a or f";

/* Reads "NN" or "NNs": decimal digits without a leading zero, at most four, then at most one suffix. */
static bool read_capability(const char *text, int *capability, char *suffix) {
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 4 || text[0] == '0') {
        return false;
    }
    *capability = (int)strtol(text, NULL, 10);
    *suffix = text[digits];
    return *suffix == '\0' || text[digits + 1] == '\0';
}

static bool is_known(int capability, char suffix) {
    for (size_t i = 0; i < KNOWN; ++i) {
        if (known[i].capability == capability) {
            return suffix == '\0' || strchr(known[i].suffixes, suffix) != NULL;
        }
    }
    return false;
}

convjit_status cj_target_parse(const char *name, cj_target *out) {
    CJ_RETURN_IF(name == NULL, CONVJIT_INVALID_ARGUMENT, "target is NULL, %s", rule);
    if (strcmp(name, "cpu") == 0) {
        *out = (cj_target){.kind = CJ_TARGET_CPU, .name = "cpu"};
        return CONVJIT_SUCCESS;
    }
    int capability = 0;
    char suffix = '\0';
    const bool readable = strncmp(name, "sm_", 3) == 0 && read_capability(name + 3, &capability, &suffix);
    CJ_RETURN_IF(readable && capability < OLDEST, CONVJIT_INVALID_ARGUMENT, "target %s is older than sm_%d, %s", name,
                 OLDEST, rule);
    CJ_RETURN_IF(!readable || !is_known(capability, suffix), CONVJIT_INVALID_ARGUMENT,
                 "target \"%.40s\" is unknown, %s", name, rule);
    *out = (cj_target){.kind = CJ_TARGET_CUDA, .capability = capability, .has_features = suffix == 'a'};
    snprintf(out->name, sizeof out->name, "%s", name);
    return CONVJIT_SUCCESS;
}

void cj_target_of_capability(int capability, cj_target *out) {
    *out = (cj_target){.kind = CJ_TARGET_CUDA, .capability = capability, .has_features = is_known(capability, 'a')};
    snprintf(out->name, sizeof out->name, "sm_%d%s", capability, out->has_features ? "a" : "");
}

const cj_compiler *cj_target_compiler(const cj_target *target) {
    return target->kind == CJ_TARGET_CPU ? &cj_cpu_compiler : &cj_nvrtc;
}
