#include "loaded.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* By default uthash exits when memory is used up; this way the node stays out of the table, its hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "status.h"

/* A binary, shared by the layers whose sources are equal. */
typedef struct module_node {
    char key[2 * CJ_KEY_BYTES + 1];
    cj_binary *binary;
    cj_module *module;
    UT_hash_handle hh;
} module_node;

typedef struct line_node {
    cj_known known;
    UT_hash_handle hh;
    char line[]; /* is the key */
} line_node;

typedef struct kept_node {
    cj_binary *binary;
    struct kept_node *next;
} kept_node;

struct cj_loaded {
    const cj_device *device;
    pthread_mutex_t lock; /* of what follows */
    module_node *modules;
    line_node *lines;
    kept_node *kept;
};

cj_loaded *cj_loaded_create(const cj_device *device) {
    cj_loaded *loaded = calloc(1, sizeof *loaded);
    if (loaded != NULL && pthread_mutex_init(&loaded->lock, NULL) != 0) {
        free(loaded);
        loaded = NULL;
    }
    if (loaded != NULL) {
        loaded->device = device;
    }
    return loaded;
}

void cj_loaded_destroy(cj_loaded *loaded) {
    if (loaded == NULL) {
        return;
    }
    module_node *module = loaded->modules;
    line_node *line = loaded->lines;
    HASH_CLEAR(hh, loaded->modules); /* frees the table, leaves the list */
    HASH_CLEAR(hh, loaded->lines);
    while (module != NULL) {
        module_node *next = module->hh.next;
        loaded->device->unload(module->module);
        cj_binary_release(module->binary);
        free(module);
        module = next;
    }
    while (line != NULL) {
        line_node *next = line->hh.next;
        free(line);
        line = next;
    }
    while (loaded->kept != NULL) {
        kept_node *next = loaded->kept->next;
        cj_binary_release(loaded->kept->binary);
        free(loaded->kept);
        loaded->kept = next;
    }
    pthread_mutex_destroy(&loaded->lock);
    free(loaded);
}

convjit_status cj_loaded_keep(cj_loaded *loaded, cj_binary *binary) {
    kept_node *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        cj_binary_release(binary);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "no memory to keep a kernel");
    }
    pthread_mutex_lock(&loaded->lock);
    *kept = (kept_node){binary, loaded->kept};
    loaded->kept = kept;
    pthread_mutex_unlock(&loaded->lock);
    return CONVJIT_SUCCESS;
}

/* ---- lines ---- */

bool cj_loaded_find(cj_loaded *loaded, const char *line, cj_known *out) {
    line_node *found;
    pthread_mutex_lock(&loaded->lock);
    HASH_FIND_STR(loaded->lines, line, found);
    if (found != NULL) {
        *out = found->known;
    }
    pthread_mutex_unlock(&loaded->lock);
    return found != NULL;
}

void cj_loaded_remember(cj_loaded *loaded, const char *line, const cj_known *known) {
    const size_t length = strlen(line);
    line_node *found;
    line_node *added = malloc(sizeof *added + length + 1);
    if (added == NULL) {
        return;
    }
    added->known = *known;
    memcpy(added->line, line, length + 1);
    pthread_mutex_lock(&loaded->lock);
    HASH_FIND_STR(loaded->lines, line, found);
    if (found == NULL) {
        HASH_ADD_STR(loaded->lines, line, added);
    }
    if (found != NULL || added->hh.tbl == NULL) {
        free(added);
    }
    pthread_mutex_unlock(&loaded->lock);
}

/* ---- modules ---- */

/* A new node of a binary that is loaded now. */
static convjit_status load(cj_loaded *loaded, cj_binary *binary, uint32_t shared_bytes, module_node **out) {
    module_node *node = calloc(1, sizeof *node);
    CJ_RETURN_IF(node == NULL, CONVJIT_OUT_OF_MEMORY, "no memory for a loaded kernel");
    const convjit_status status =
        loaded->device->load(binary->blob.data, binary->blob.size, shared_bytes, &node->module);
    if (status != CONVJIT_SUCCESS) {
        free(node);
        return status;
    }
    memcpy(node->key, binary->key.hex, sizeof node->key);
    node->binary = binary;
    HASH_ADD_STR(loaded->modules, key, node);
    if (node->hh.tbl == NULL) {
        loaded->device->unload(node->module);
        free(node);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "no memory for a loaded kernel");
    }
    *out = node;
    return CONVJIT_SUCCESS;
}

convjit_status cj_loaded_share(cj_loaded *loaded, cj_binary *binary, uint32_t shared_bytes, cj_module **out) {
    module_node *node;
    convjit_status status = CONVJIT_SUCCESS;
    pthread_mutex_lock(&loaded->lock);
    HASH_FIND_STR(loaded->modules, binary->key.hex, node);
    if (node != NULL) {
        cj_binary_release(binary);
    } else {
        status = load(loaded, binary, shared_bytes, &node);
    }
    if (status == CONVJIT_SUCCESS) {
        *out = node->module;
    }
    pthread_mutex_unlock(&loaded->lock);
    return status;
}
