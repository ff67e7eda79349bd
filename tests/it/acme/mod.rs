//! Certificates that the gateway orders itself, from Pebble: Let's Encrypt's own server for tests, which connects to the
//! gateway as an authority does. What can't be had here is a public name, and so Let's Encrypt itself.

mod directory;
mod failures;
mod pebble;
mod serving;
mod settings;
mod stalled;
mod together;
