//! The command line: which command, and the exit code. What each does is in `cli`.

mod cli;

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A request makes a hundred small allocations, a good part of which another thread frees: the system's allocator took a
/// sixth of the gateway's time for them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
