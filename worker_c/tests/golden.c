#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int digit_of(char character) {
    const char *const digits = "0123456789abcdef";
    const char *found = character != '\0' ? strchr(digits, character) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

static bool read_bytes(const char *text, struct golden *golden) {
    golden->size = strlen(text) / 2;
    golden->bytes = malloc(golden->size);
    for (size_t i = 0; i < golden->size; i++) {
        int high = digit_of(text[2 * i]);
        int low = digit_of(text[2 * i + 1]);
        if (golden->bytes == NULL || high < 0 || low < 0) {
            return false;
        }
        golden->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return strlen(text) % 2 == 0;
}

enum { N_COLUMNS = 5 };

static bool split(char *line, char *columns[N_COLUMNS]) {
    line[strcspn(line, "\n")] = '\0';
    for (int i = 0; i < N_COLUMNS; i++) {
        columns[i] = line;
        char *tab = line != NULL ? strchr(line, '\t') : NULL;
        if (line == NULL || (tab == NULL) != (i == N_COLUMNS - 1)) {
            return false;
        }
        line = tab;
        if (tab != NULL) {
            *line++ = '\0';
        }
    }
    return true;
}

static bool read_line(char *line, struct golden *golden) {
    char *columns[N_COLUMNS];
    if (!split(line, columns)) {
        return false;
    }
    snprintf(golden->name, sizeof(golden->name), "%s", columns[0]);
    golden->is_to_worker = strcmp(columns[1], "to_worker") == 0;
    snprintf(golden->verdict, sizeof(golden->verdict), "%s", columns[2]);
    golden->json = columns[4];
    return (golden->is_to_worker || strcmp(columns[1], "to_host") == 0) &&
           read_bytes(columns[3], golden);
}

size_t golden_each(void (*visit)(const struct golden *golden)) {
    FILE *file = fopen(GOLDEN_FRAMES, "r");
    if (file == NULL) {
        perror(GOLDEN_FRAMES);
        return 0;
    }
    char *line = NULL;
    size_t capacity = 0;
    size_t n_lines = 0;
    bool is_right = true;
    while (is_right && getline(&line, &capacity, file) > 0) {
        struct golden golden = {.bytes = NULL};
        n_lines++;
        is_right = read_line(line, &golden);
        if (is_right) {
            visit(&golden);
        } else {
            fprintf(stderr, "%s:%zu: not a golden frame\n", GOLDEN_FRAMES, n_lines);
        }
        free(golden.bytes);
    }
    free(line);
    fclose(file);
    return is_right ? n_lines : 0;
}
