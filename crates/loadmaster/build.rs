//! Options of the linker.

use std::env::var_os;
use std::process::Command;

/// Functions and tables that differ in their types only are in the program once. `lld` can do that, the default linker of this target.
const MERGE_EQUAL_CODE: [&str; 2] = ["-Wl,--icf=all", "-Wl,--ignore-data-address-equality"];

/// Constants that mimalloc tells apart by their addresses: with equal ones, each allocation fails.
const NEVER_MERGED: [&str; 3] = ["_mi_page_empty", "_mi_theap_empty", "_mi_theap_empty_wrong"];

/// Addresses that the dynamic linker has to adjust, as a bitmap: 1.6 MB less. glibc reads it since 2.36; older ones refuse the program.
const PACK_RELOCATIONS: &str = "-Wl,-z,pack-relative-relocs";
const GLIBC_THAT_READS_IT: (u32, u32) = (2, 36);

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
        for symbol in NEVER_MERGED {
            println!("cargo::rustc-link-arg-bins=-Wl,--keep-unique={symbol}");
        }
        if glibc_version().is_some_and(|version| version >= GLIBC_THAT_READS_IT) {
            println!("cargo::rustc-link-arg-bins={PACK_RELOCATIONS}");
        }
    }
}

/// The version of this machine's glibc, where the program probably runs.
fn glibc_version() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
