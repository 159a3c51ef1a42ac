#include "utf8.h"

/* Well-formed sequences by their first byte (The Unicode Standard, table 3-7): the range of the
 * second byte and how many bytes follow the first. Every further byte is 80..BF. */
static const struct utf8_form {
    uint8_t first_least, first_most, second_least, second_most, n_following;
} FORMS[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2},
    {0xED, 0xED, 0x80, 0x9F, 2}, {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
    {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3},
};

static const struct utf8_form *form_of(uint8_t first) {
    for (size_t i = 0; i < sizeof(FORMS) / sizeof(FORMS[0]); i++) {
        if (first >= FORMS[i].first_least && first <= FORMS[i].first_most) {
            return &FORMS[i];
        }
    }
    return NULL;
}

static bool follows(const uint8_t *bytes, const struct utf8_form *form) {
    if (bytes[1] < form->second_least || bytes[1] > form->second_most) {
        return false;
    }
    for (size_t i = 2; i <= form->n_following; i++) {
        if ((bytes[i] & 0xC0) != 0x80) {
            return false;
        }
    }
    return true;
}

/* Bytes of the well-formed sequence at `bytes`, or 0. */
static size_t sequence_size(const uint8_t *bytes, size_t left) {
    if (bytes[0] < 0x80) {
        return 1;
    }
    const struct utf8_form *form = form_of(bytes[0]);
    if (form == NULL || form->n_following >= left || !follows(bytes, form)) {
        return 0;
    }
    return 1 + (size_t)form->n_following;
}

void utf8_mend(uint8_t *bytes, size_t size) {
    size_t at = 0;
    while (at < size) {
        size_t step = sequence_size(bytes + at, size - at);
        if (step == 0) {
            bytes[at] = '?';
            step = 1;
        }
        at += step;
    }
}

bool utf8_is_valid(const uint8_t *bytes, size_t size) {
    size_t step = 1;
    for (size_t at = 0; at < size && step > 0; at += step) {
        step = sequence_size(bytes + at, size - at);
    }
    return step > 0;
}
