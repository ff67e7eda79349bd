//! The command line: run, check, keys, demo; exit codes.

fn main() {}
