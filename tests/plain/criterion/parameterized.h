/* parameterized.h - all of it is in criterion.h. */
#include "criterion.h"
