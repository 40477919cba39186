//! The images: which program each has, and what is beside it.

/// An image with one program.
#[derive(Debug)]
pub struct Image {
    pub name: &'static str,
    pub description: &'static str,
    /// The package that the program is built from; the binary has its name.
    pub package: &'static str,
    /// The path of the program in the image.
    pub program: &'static str,
    /// Arguments of the entry point, before those of the container.
    pub arguments: &'static [&'static str],
    /// Symbolic links: path and target.
    pub links: &'static [(&'static str, &'static str)],
}

/// All images.
pub const IMAGES: &[Image] = &[
    Image {
        name: "loadmaster",
        description: "A Kubernetes scheduler that is compatible with kube-scheduler 1.36",
        package: "loadmaster",
        program: "/bin/loadmaster",
        arguments: &[],
        // Called by this name, the program takes kube-scheduler's flags without `run`.
        links: &[("/bin/kube-scheduler", "loadmaster")],
    },
    Image {
        name: "loadmaster-controllers",
        description: "The controllers of PodGroups and ElasticQuotas",
        package: "loadmaster",
        program: "/bin/loadmaster",
        arguments: &["controllers"],
        links: &[],
    },
    Image {
        name: "sample-scheduler",
        description: "An example: a scheduler with a plugin of its own",
        package: "sample-plugin",
        // The name that the arguments of existing Deployments begin with.
        program: "/bin/sample-scheduler-framework",
        arguments: &[],
        links: &[],
    },
    Image {
        name: "sample-extender",
        description: "An example: an HTTP extender with filter and prioritize",
        package: "sample-extender",
        program: "/bin/sample-extender",
        arguments: &[],
        links: &[],
    },
    Image {
        name: "gpushare-extender",
        description: "An HTTP extender that lets pods share GPUs by memory",
        package: "gpushare-extender",
        program: "/bin/gpushare-extender",
        arguments: &[],
        links: &[],
    },
];

/// The user and group of all containers, by number, so that `runAsNonRoot` can be checked.
pub const USER: &str = "65532:65532";

/// `/etc/passwd` and `/etc/group`: names for [`USER`].
pub const PASSWD: &str = "nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
pub const GROUP: &str = "nonroot:x:65532:\n";

/// The environment of all containers: the program can be called by its name.
pub const ENVIRONMENT: &[(&str, &str)] = &[("PATH", "/bin")];

impl Image {
    /// The entry point: program and arguments.
    pub fn entry_point(&self) -> Vec<&'static str> {
        [self.program].into_iter().chain(self.arguments.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Dockerfile builds the same images, with the same version of Rust.
    #[test]
    fn the_dockerfile_has_the_same_images() {
        let root = crate::root().unwrap();
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let dockerfile = read("Dockerfile");
        let toolchain = read("rust-toolchain.toml");
        let version = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap();
        let version = version.trim_matches('"');
        assert!(dockerfile.contains(&format!("\nFROM rust:{version}-bookworm AS build\n")));
        assert!(dockerfile.contains(&format!("\nUSER {USER}\n")));
        for (file, line) in [("passwd", PASSWD), ("group", GROUP)] {
            let line = line.trim_end();
            assert!(dockerfile.contains(&format!("echo '{line}' >/image/etc/{file}")), "{file}");
        }
        for (name, value) in ENVIRONMENT {
            assert!(dockerfile.contains(&format!("\nENV {name}={value}\n")), "{name}");
        }
        for image in IMAGES {
            let stage = format!("\nFROM base AS {}\n", image.name);
            let stage = dockerfile.split(&stage).nth(1).expect(image.name);
            let stage = stage.split("\nFROM ").next().unwrap_or_default();
            let entry_point: Vec<String> =
                image.entry_point().iter().map(|word| format!("\"{word}\"")).collect();
            let wanted = format!("ENTRYPOINT [{}]", entry_point.join(", "));
            assert!(stage.contains(&wanted), "{}: {wanted}", image.name);
            assert!(
                dockerfile.contains(&format!("--package {}", image.package)),
                "{}",
                image.package
            );
        }
    }
}
