/* Runs a fuzz target on files, without libFuzzer. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A block of exactly the size of the file, so that ASan sees a byte too far;
 * NULL when it cannot be read. */
static uint8_t *
contents(const char *path, size_t *size)
{
    static uint8_t block[1 << 20];
    uint8_t *copy = NULL;
    FILE *f = fopen(path, "rb");

    if (f == NULL) {
        return NULL;
    }

    *size = fread(block, 1, sizeof(block), f);

    if (!ferror(f) && *size < sizeof(block)) {
        copy = malloc(*size != 0 ? *size : 1);
    }

    if (copy != NULL) {
        memcpy(copy, block, *size);
    }

    fclose(f);

    return copy;
}

int
main(int argc, char **argv)
{
    int i;
    size_t size;
    uint8_t *data;

    for (i = 1; i < argc; i++) {
        printf("%s\n", argv[i]); /* the last one is what a failure is about */
        fflush(stdout);

        data = contents(argv[i], &size);

        if (data == NULL) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 1;
        }

        (void) LLVMFuzzerTestOneInput(data, size);
        free(data);
    }

    return 0;
}
