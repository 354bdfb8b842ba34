/* grid_table.h - layers written down one by one: what broke other libraries, and corners of the descriptor. */
#ifndef GRID_TABLE_H
#define GRID_TABLE_H

#include "grid.h"

size_t grid_table_count(void);

/* Fills in all of them. A line that does not parse gives a case of rank 0, which fails when it is run. */
void grid_table_get(grid_case *cases);

#endif
