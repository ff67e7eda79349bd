//! Hostile bodies, read by every provider's rules: no panic, items inside the body and in its order, no part empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umavez_fuzz::{Input, check_items, providers};

fuzz_target!(|bytes: &[u8]| {
    let input = Input::of(bytes);
    for provider in providers() {
        check_items(&provider.items(&input.delivery(input.body)), input.body);
    }
});
