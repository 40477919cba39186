# The images of `cargo xtask image`, for those who build with a container engine:
#   docker build --tag loadmaster:0.1.0 .
#   docker build --tag sample-scheduler:v1 --target sample-scheduler .
FROM rust:1.95.0-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /loadmaster
COPY . .
RUN target="$(uname -m)-unknown-linux-musl" \
    && rustup target add "$target" \
    && export "CC_$(uname -m)_unknown_linux_musl=musl-gcc" \
    && cargo build --locked --release --no-default-features --target "$target" \
        --package loadmaster --package sample-plugin --package sample-extender --package gpushare-extender \
    && ln -s "/loadmaster/target/$target/release" /programs
RUN mkdir -p /image/bin /image/etc /image/tmp \
    && chmod 1777 /image/tmp \
    && echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >/image/etc/passwd \
    && echo 'nonroot:x:65532:' >/image/etc/group \
    && mkdir /scheduler \
    && cp /programs/loadmaster /scheduler \
    && ln -s loadmaster /scheduler/kube-scheduler

FROM scratch AS base
COPY --from=build /image/ /
ENV PATH=/bin
USER 65532:65532
WORKDIR /

FROM base AS loadmaster-controllers
COPY --from=build /programs/loadmaster /bin/loadmaster
ENTRYPOINT ["/bin/loadmaster", "controllers"]

FROM base AS sample-scheduler
COPY --from=build /programs/sample-plugin /bin/sample-scheduler-framework
ENTRYPOINT ["/bin/sample-scheduler-framework"]

FROM base AS sample-extender
COPY --from=build /programs/sample-extender /bin/sample-extender
ENTRYPOINT ["/bin/sample-extender"]

FROM base AS gpushare-extender
COPY --from=build /programs/gpushare-extender /bin/gpushare-extender
ENTRYPOINT ["/bin/gpushare-extender"]

# The last stage is the one that is built without --target.
FROM base AS loadmaster
# With the link kube-scheduler.
COPY --from=build /scheduler/ /bin/
ENTRYPOINT ["/bin/loadmaster"]
