/* settings.h - every environment variable convjit reads: one table, mirrored in README ("Settings") and compared with
 * it by a test. A variable that is set but empty counts as not set. */
#ifndef CJ_SETTINGS_H
#define CJ_SETTINGS_H

#define CJ_SETTINGS_LIST(X)                                                                                      \
    X(CACHE_DIR, "CONVJIT_CACHE_DIR", "cache directory; A:B:C: A is written, B and C are only read")             \
    X(CACHE_MODE, "CONVJIT_CACHE_MODE", "normal, cache-only (never compile), refresh (compile anew) or off")     \
    X(CACHE_SIZE, "CONVJIT_CACHE_SIZE", "size limit of the written directory, as 512M; default 4G, 0 is none")   \
    X(CACHE_FIELDS, "CONVJIT_CACHE_FIELDS", "1: what the key of each miss hashes, as text beside the entries")   \
    X(RECORD, "CONVJIT_RECORD", "file that gains the line of each created layer, for convjit warm")              \
    X(PLANS, "CONVJIT_PLANS", "plan file of convjit tune: layers that it names are computed as it says")         \
    X(XDG_CACHE_HOME, "XDG_CACHE_HOME", "absolute path whose convjit/ is the per-user cache directory")          \
    X(HOME, "HOME", "absolute path whose .cache/convjit/ it is otherwise")                                       \
    X(TMPDIR, "TMPDIR", "place for temporary files, instead of /tmp; of the cache where HOME cannot be written") \
    X(NVRTC, "CONVJIT_NVRTC", "path of the NVRTC library, instead of the searched names")                        \
    X(CUDA_HOME, "CUDA_HOME", "CUDA toolkit whose lib64 is searched for NVRTC")                                  \
    X(CUDA_PATH, "CUDA_PATH", "the same, after CUDA_HOME")                                                       \
    X(DRIVER, "CONVJIT_DRIVER", "path of the CUDA driver library, instead of libcuda.so.1")                      \
    X(CXX, "CONVJIT_CXX", "host C++ compiler of the target cpu, instead of c++")                                 \
    X(CXXFLAGS, "CONVJIT_CXXFLAGS", "more options for that compiler, separated by spaces (-fsanitize=address)")  \
    X(FAMILY, "CONVJIT_FAMILY", "use this family only (tests, benchmarks): layers it refuses are unsupported")   \
    X(LOG, "CONVJIT_LOG", "1: one line a created layer, and every warning, to standard error")

typedef enum cj_setting {
#define CJ_SETTING_ENUM(name, variable, meaning) CJ_SETTING_##name,
    CJ_SETTINGS_LIST(CJ_SETTING_ENUM)
#undef CJ_SETTING_ENUM
        CJ_SETTING_COUNT
} cj_setting;

/* The value, or NULL where it is not set. */
const char *cj_setting_get(cj_setting setting);
const char *cj_setting_variable(cj_setting setting);
const char *cj_setting_meaning(cj_setting setting);

#endif
