#define REAL double /* scan.c in double precision */
#define PLACE int64_t
#include "scan.c"
