//! One binary, a list of stories.

mod pass;

fn main() {}
