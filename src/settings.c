#include "settings.h"

#include <stddef.h>
#include <stdlib.h>

static const struct {
    const char *variable;
    const char *meaning;
} settings[CJ_SETTING_COUNT] = {
#define SETTING(name, variable, meaning) {variable, meaning},
    CJ_SETTINGS_LIST(SETTING)
#undef SETTING
};

/* Settings name libraries to load and programs to run, so a set-user-ID program must not take them from its caller. */
const char *cj_setting_get(cj_setting setting) {
    const char *value = secure_getenv(settings[setting].variable);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

const char *cj_setting_variable(cj_setting setting) {
    return settings[setting].variable;
}

const char *cj_setting_meaning(cj_setting setting) {
    return settings[setting].meaning;
}
