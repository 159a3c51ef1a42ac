/* KV cells of sessions that share their first rows: each is counted once, and is free when the last
 * session lets go of it. */
#include "cell_chains.h"
#include "check.h"

enum { N_CELLS = 16 };

static cell_chains make_chains(void) {
    cell_chains chains;
    shard_error error;
    CHECK_EQUAL(cell_chains_init(&chains, N_CELLS, &error), SHARD_OK);
    return chains;
}

static uint32_t extend(cell_chains *chains, uint32_t last, uint32_t n_rows) {
    for (uint32_t i = 0; i < n_rows; i++) {
        last = cell_chains_extend(chains, last);
    }
    return last;
}

static void test_cells_of_one_session_come_back(void) {
    cell_chains chains = make_chains();
    uint32_t end = extend(&chains, CELL_NONE, N_CELLS);
    CHECK_EQUAL(chains.n_used, N_CELLS);
    CHECK_EQUAL(cell_chains_shorten(&chains, &end, 0), 0);
    CHECK_EQUAL(cell_chains_shorten(&chains, &end, 5), 5);
    CHECK_EQUAL(chains.n_used, N_CELLS - 5);
    CHECK_EQUAL(cell_chains_shorten(&chains, &end, N_CELLS - 5), N_CELLS - 5);
    CHECK_EQUAL(chains.n_used, 0);
    CHECK_EQUAL(end, CELL_NONE);
    end = extend(&chains, CELL_NONE, N_CELLS);
    CHECK_EQUAL(chains.n_used, N_CELLS);
    cell_chains_free(&chains);
}

static void test_shared_cells_are_freed_by_the_last_owner(void) {
    cell_chains chains = make_chains();
    uint32_t first = extend(&chains, CELL_NONE, 8);
    uint32_t second = cell_chains_share(&chains, first, 3); /* its first five rows */
    CHECK_EQUAL(chains.n_used, 8);
    second = extend(&chains, second, 2);
    CHECK_EQUAL(chains.n_used, 10);
    CHECK_EQUAL(cell_chains_shorten(&chains, &first, 8), 3);
    CHECK_EQUAL(chains.n_used, 7);
    CHECK_EQUAL(cell_chains_shorten(&chains, &second, 7), 7);
    CHECK_EQUAL(chains.n_used, 0);
    cell_chains_free(&chains);
}

static void test_trim_below_the_fork_frees_what_is_not_shared(void) {
    cell_chains chains = make_chains();
    uint32_t first = extend(&chains, CELL_NONE, 8);
    uint32_t second = cell_chains_share(&chains, first, 2);
    second = extend(&chains, second, 4); /* ten rows, six of them shared */
    CHECK_EQUAL(cell_chains_shorten(&chains, &second, 7), 4);
    CHECK_EQUAL(chains.n_used, 8);
    second = extend(&chains, second, 1);
    CHECK_EQUAL(chains.n_used, 9);
    CHECK_EQUAL(cell_chains_shorten(&chains, &first, 8), 5);
    CHECK_EQUAL(cell_chains_shorten(&chains, &second, 4), 4);
    CHECK_EQUAL(chains.n_used, 0);
    cell_chains_free(&chains);
}

static void test_forks_of_forks_and_empty_ones(void) {
    cell_chains chains = make_chains();
    uint32_t ends[4] = {extend(&chains, CELL_NONE, 6)};
    ends[1] = cell_chains_share(&chains, ends[0], 0);
    ends[2] = cell_chains_share(&chains, ends[1], 3);
    ends[3] = cell_chains_share(&chains, ends[2], 3);
    CHECK_EQUAL(ends[3], CELL_NONE);
    CHECK_EQUAL(chains.n_used, 6);
    CHECK_EQUAL(cell_chains_shorten(&chains, &ends[0], 6), 0);
    CHECK_EQUAL(cell_chains_shorten(&chains, &ends[1], 6), 3);
    CHECK_EQUAL(cell_chains_shorten(&chains, &ends[2], 3), 3);
    CHECK_EQUAL(chains.n_used, 0);
    cell_chains_free(&chains);
}

int main(void) {
    test_cells_of_one_session_come_back();
    test_shared_cells_are_freed_by_the_last_owner();
    test_trim_below_the_fork_frees_what_is_not_shared();
    test_forks_of_forks_and_empty_ones();
    return 0;
}
