/* A small TAP producer for the unit tests of src/. */

#ifndef TAP_H
#define TAP_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int tap_n, tap_failed;

__attribute__((format(printf, 2, 3))) static inline int
ok(int cond, const char *fmt, ...)
{
    va_list args;

    printf("%s %d - ", cond ? "ok" : "not ok", ++tap_n);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);

    if (!cond) {
        tap_failed++;
    }

    return cond;
}

static inline int
is_bytes(const char *got, size_t n, const char *want, size_t m,
         const char *name)
{
    int same = n == m && (n == 0 || memcmp(got, want, n) == 0);

    ok(same, "%s", name);

    if (!same) {
        printf("#   got (%zu): %.*s\n#  want (%zu): %.*s\n", n,
               (int) (n > 2000 ? 2000 : n), got, m, (int) (m > 2000 ? 2000 : m),
               want);
    }

    return same;
}

#define is_str(s, literal, name)                                               \
    is_bytes((s).data, (s).len, (literal), strlen(literal), (name))

/* The plan comes last; the exit status says whether all passed. */
static inline int
done_testing(void)
{
    printf("1..%d\n", tap_n);
    return tap_failed != 0;
}

#endif /* TAP_H */
