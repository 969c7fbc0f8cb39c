# The commands one needs. `just` lists them; each is what its line says, so they work without just, too.
# `--workspace` stays in every selection: another selection has other features, and rebuilds the dependencies.

_list:
    @just --list --unsorted

# Compile everything, tests and benches included.
check:
    cargo check --workspace --all-targets --locked

# Run tests on the dev profile: `just test --test wire`, `just test --lib keyring`.
test *ARGS:
    # Most tests wait more than they compute, so more of them run than there are processors.
    RUST_TEST_THREADS=$(($(nproc) * 2)) cargo test --workspace --locked {{ARGS}}

# The README's test command, or some of its parts: `just parts lint fuzz`, `just parts all`.
parts *WORDS:
    scripts/test {{WORDS}}

# Write the generated documents: the configuration reference.
docs:
    UPDATE_DOCS=1 cargo test --workspace --locked --test across -- docs::
