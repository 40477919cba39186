//! Images with program files that are there already, such as those of a release build: for checks that must not take as long as a build for musl.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::layer::{Entries, add_file};

/// Adds the shared libraries and the dynamic linker that a program needs, at their paths on this machine.
pub fn add_libraries(entries: &mut Entries, program: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(program).output().context("running ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_static = format!("{text}{errors}").contains("statically linked")
        || errors.contains("not a dynamic executable");
    ensure!(output.status.success() || is_static, "ldd: {}", errors.trim());
    for path in libraries(&text) {
        let content = std::fs::read(path).with_context(|| format!("reading {path}"))?;
        add_file(entries, path, 0o755, content);
    }
    Ok(())
}

/// The files in ldd's output; the kernel's own library has no file.
fn libraries(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.rsplit("=> ").next()?.split_whitespace().next())
        .filter(|file| file.starts_with('/'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        assert_eq!(
            libraries(text),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}
