//! Options of the linker.

use std::env::var_os;

/// Functions and tables that differ in their types only are in the program once. `lld` can do that, the default linker of this target.
const MERGE_EQUAL_CODE: [&str; 2] = ["-Wl,--icf=all", "-Wl,--ignore-data-address-equality"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name, value| var_os(name).is_some_and(|it| it == value);
    // Whoever chooses a linker may choose another one.
    let is_default_linker = var_os("RUSTC_LINKER").is_none()
        && var_os("CARGO_ENCODED_RUSTFLAGS")
            .is_none_or(|flags| !flags.to_string_lossy().contains("link"));
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") && is_default_linker {
        for option in MERGE_EQUAL_CODE {
            println!("cargo::rustc-link-arg-bins={option}");
        }
    }
}
