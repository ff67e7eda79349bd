//! One binary, a list of stories.

mod cli;
mod config;
