//! One binary, a list of stories.

fn main() {}
