"""Finds the programs to run: those that the environment names, or cargo built, or the system has."""

import os, shutil
from . import ROOT, Failed

BUILT = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
# Absolute: some programs are started in another directory.
POSTERN = os.path.abspath(os.environ.get("POSTERN_BINARY") or os.path.join(BUILT, "postern"))

# Another build of the same, which some studies compare with it.
BEFORE = os.path.abspath(os.environ.get("POSTERN_BEFORE") or "/nonexistent")


def runs(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


def postern():
    """The gateway, issuer and minter."""
    if not runs(POSTERN):
        raise Failed(f"{POSTERN} is no program: cargo build --release --locked, or POSTERN_BINARY")
    return POSTERN


def driver():
    """postern-loadtest: as built, or beside the postern that POSTERN_BINARY names."""
    built = os.path.join(BUILT, "postern-loadtest")
    beside = os.path.join(os.path.dirname(POSTERN), "postern-loadtest")
    path = os.path.abspath(os.environ.get("POSTERN_LOADTEST") or (built if runs(built) else beside))
    if not runs(path):
        raise Failed(f"{path} is no program: cargo build --release --locked -p postern-loadtest, or POSTERN_LOADTEST")
    return path


def simulator():
    """postern-spend-sim: of a release build, else of the tests' build."""
    for profile in ("release", "debug"):
        path = os.path.join(os.path.dirname(BUILT), profile, "postern-spend-sim")
        if runs(path):
            return path
    raise Failed(f"{path} is no program: cargo build --release --locked -p postern-loadtest")


def program(name):
    """The path of a program of the system, or None. Debian installs some in folders that only root's PATH has."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def needed(name):
    """The same for a program that the measurement requires."""
    found = program(name)
    if not found:
        raise Failed(f"{name} is missing: apt-get install {name}")
    return found
