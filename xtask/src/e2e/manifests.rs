//! `cargo xtask e2e manifests`: renders `deploy/` with the real helm and kustomize, and applies it to a real kube-apiserver.
//!
//! The rendered objects are compared with those recorded in `deploy/rendered`, which tests check without helm and kustomize. Everything is applied
//! with server-side dry run and for real; pods are made of the templates in a namespace that enforces the Pod Security Standard "restricted"; the
//! chart is installed and uninstalled; its schema must reject wrong values; and a scheduler runs as the ServiceAccount of the manifests.

mod apply;
mod least_roles;
mod monitoring;
pub mod rendered;
mod values;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;

use super::programs::{self, Program};

/// Render the manifests of deploy/ with helm and kustomize, and apply them to a real API server.
#[derive(Parser)]
pub struct Args {
    /// Write the rendered manifests to deploy/rendered, in place of a comparison with them.
    #[arg(long)]
    write: bool,
    /// Only render, and check values that the chart must reject; no control plane.
    #[arg(long)]
    render_only: bool,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// Returns whether everything was as expected.
pub async fn run(args: &Args) -> Result<bool> {
    programs::build(&[Program::Helm, Program::Kustomize, Program::Kubectl])?;
    if args.write {
        monitoring::write()?;
    }
    let variants = rendered::variants()?;
    let mut good = true;
    for variant in &variants {
        let text = variant.render().with_context(|| variant.name.clone())?;
        if args.write {
            variant.record(&text)?;
        } else if variant.recorded()? != rendered::with_header(&text)? {
            println!("{}: differs from the recorded one; `--write` writes it", variant.name);
            good = false;
        }
    }
    println!("{} variants rendered", variants.len());
    good &= values::check()?;
    if !args.render_only {
        good &= apply::check(&variants).await?;
        good &= least_roles::check(args.loadmaster.as_deref()).await?;
    }
    Ok(good)
}
