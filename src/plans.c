#include "plans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By default uthash exits when memory is used up; this way the node stays out of the table, its hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "settings.h"
#include "status.h"

typedef struct planned {
    UT_hash_handle hh;
    cj_way way;
    char family[32];
    char line[CONVJIT_LAYER_LINE_MAX]; /* is the key, spelt as convjit spells it */
} planned;

struct cj_plans {
    planned *layers;
};

/* ---- a line ---- */

enum { TARGET, LAYER, FAMILY, CONFIG, FIELDS };

/* Cuts at " | ". False where there are fewer fields, or an empty one. */
static bool split(char *text, char *fields[FIELDS]) {
    for (int i = 0; i < FIELDS; ++i) {
        fields[i] = text;
        char *const end = text ? strstr(text, " | ") : NULL;
        if (end) {
            *end = '\0';
        }
        text = end ? end + 3 : NULL;
        if (!fields[i] || fields[i][0] == '\0') {
            return false;
        }
    }
    return true;
}

static convjit_status add(cj_plans *plans, char *const fields[FIELDS]) {
    convjit_desc desc;
    CJ_TRY(convjit_layer_line_parse(fields[LAYER], &desc, NULL));
    planned *layer = calloc(1, sizeof *layer), *found;
    CJ_RETURN_IF(!layer, CONVJIT_OUT_OF_MEMORY, "no memory for a plan");
    convjit_layer_line_format(&desc, -1, layer->line, sizeof layer->line);
    const int family = snprintf(layer->family, sizeof layer->family, "%s", fields[FAMILY]);
    const int config = snprintf(layer->way.config, sizeof layer->way.config, "%s", fields[CONFIG]);
    if ((size_t)family >= sizeof layer->family || (size_t)config >= sizeof layer->way.config) {
        free(layer);
        return cj_fail(CONVJIT_FILE_FAILED, "a family has at most %zu characters, a configuration %zu",
                       sizeof layer->family - 1, sizeof layer->way.config - 1);
    }
    layer->way.family = layer->family;
    HASH_FIND_STR(plans->layers, layer->line, found);
    if (found) {
        HASH_DEL(plans->layers, found);
        free(found);
    }
    HASH_ADD_STR(plans->layers, line, layer);
    if (!layer->hh.tbl) {
        free(layer);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "no memory for a plan");
    }
    return CONVJIT_SUCCESS;
}

/* ---- the file ---- */

static convjit_status read_line(char *text, const char *target, cj_plans *plans) {
    char *fields[FIELDS] = {0};
    text[strcspn(text, "#\r\n")] = '\0';
    if (text[strspn(text, " \t")] == '\0') {
        return CONVJIT_SUCCESS;
    }
    CJ_RETURN_IF(!split(text, fields), CONVJIT_FILE_FAILED, "not TARGET | LAYER LINE | FAMILY | CONFIGURATION");
    return strcmp(fields[TARGET], target) == 0 ? add(plans, fields) : CONVJIT_SUCCESS;
}

static convjit_status read_lines(FILE *file, const char *name, const char *target, cj_plans *plans) {
    char *text = NULL;
    size_t size = 0;
    convjit_status status = CONVJIT_SUCCESS;
    for (int number = 1; status == CONVJIT_SUCCESS && getline(&text, &size, file) >= 0; ++number) {
        status = read_line(text, target, plans);
        if (status != CONVJIT_SUCCESS) {
            status = cj_fail_prefix(status == CONVJIT_OUT_OF_MEMORY ? status : CONVJIT_FILE_FAILED,
                                    "plan file %s, line %d", name, number);
        }
    }
    free(text);
    CJ_RETURN_IF(status == CONVJIT_SUCCESS && ferror(file), CONVJIT_FILE_FAILED, "plan file %s cannot be read: %s",
                 name, strerror(errno));
    return status;
}

convjit_status cj_plans_read(const char *name, const char *target, cj_plans **out) {
    cj_plans *plans = calloc(1, sizeof *plans);
    CJ_RETURN_IF(!plans, CONVJIT_OUT_OF_MEMORY, "no memory for plans");
    name = name ? name : cj_setting_get(CJ_SETTING_PLANS);
    FILE *file = name ? fopen(name, "re") : NULL;
    convjit_status status = CONVJIT_SUCCESS;
    if (name && !file) {
        status = cj_fail(CONVJIT_FILE_FAILED, "plan file %s cannot be read: %s", name, strerror(errno));
    } else if (file) {
        status = read_lines(file, name, target, plans);
        (void)fclose(file);
    }
    if (status != CONVJIT_SUCCESS) {
        cj_plans_free(plans);
        return status;
    }
    *out = plans;
    return CONVJIT_SUCCESS;
}

void cj_plans_free(cj_plans *plans) {
    if (!plans) {
        return;
    }
    planned *layer = plans->layers;
    HASH_CLEAR(hh, plans->layers); /* frees the table, leaves the list */
    while (layer) {
        planned *const next = layer->hh.next;
        free(layer);
        layer = next;
    }
    free(plans);
}

const cj_way *cj_plans_find(const cj_plans *plans, const char *line) {
    const planned *found;
    HASH_FIND_STR(plans->layers, line, found);
    return found ? &found->way : NULL;
}
