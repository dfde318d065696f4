/* scan.c in double precision. */
#define REAL double
#include "scan.c"
