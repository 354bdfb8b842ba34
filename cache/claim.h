/* claim.h - one build per key among processes: a courtesy, never needed for a right result. */
#ifndef CJ_CLAIM_H
#define CJ_CLAIM_H

#include "directory.h"

/* Claims a key for this process. A claim ends with the process at the latest. */
typedef enum cj_claim_result {
    CJ_CLAIM_OURS, /* perhaps after somebody else's: look again whether the binary is there */
    CJ_CLAIM_BUSY, /* somebody else has had it all the time */
    CJ_CLAIM_NONE  /* there are no claims in this directory */
} cj_claim_result;
typedef struct cj_claim {
    int file; /* -1: none */
} cj_claim;

/* Waits at most so long for a claim of others. Creates the directory where it is missing. */
cj_claim_result cj_claim_take(const cj_directory *directory, const cj_key *key, int wait_ms, cj_claim *out);
void cj_claim_release(cj_claim *claim);

#endif
