/* SQLite itself stepping through columns of a table, nothing else: the floor that reading is measured against.
   usage: read_floor FILE SQL    prints seconds, the processor's seconds, rows and the wrapped
   sum of all values as integers */
#include <sqlite3.h>
#include <stdio.h>
#include <time.h>

int main(int argc, char **argv) {
    sqlite3 *db;
    sqlite3_stmt *statement;
    struct timespec begin, end, processor;
    if (argc != 3) return 2;
    if (sqlite3_open_v2(argv[1], &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, 0) != SQLITE_OK) return 1;
    if (sqlite3_prepare_v2(db, argv[2], -1, &statement, 0) != SQLITE_OK) {
        fprintf(stderr, "%s\n", sqlite3_errmsg(db));
        return 1;
    }
    int columns = sqlite3_column_count(statement);
    unsigned long long rows = 0, sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (sqlite3_step(statement) == SQLITE_ROW) {
        for (int i = 0; i < columns; i++) sum += (unsigned long long)sqlite3_column_int64(statement, i);
        rows++;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &processor);
    printf("%.6f %.6f %llu %llu\n", (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) * 1e-9,
           processor.tv_sec + processor.tv_nsec * 1e-9, rows, sum);
    return 0;
}
