//! Defines the types of custom resources: metadata, `spec` and `status`, as the types of `k8s_openapi` are.

/// Defines a namespaced custom resource of scheduler-plugins.
macro_rules! custom_resource {
    ($(#[$doc:meta])* $name:ident($resource:literal), spec: $spec:ty, status: $status:ty $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        pub struct $name {
            /// Its metadata.
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What its user wants.
            pub spec: Option<$spec>,
            /// What its controller has observed.
            pub status: Option<$status>,
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use k8s_openapi::Resource as _;
                use serde::ser::SerializeStruct as _;
                let mut object = serializer.serialize_struct(Self::KIND, 5)?;
                object.serialize_field("apiVersion", Self::API_VERSION)?;
                object.serialize_field("kind", Self::KIND)?;
                object.serialize_field("metadata", &self.metadata)?;
                match &self.spec {
                    Some(spec) => object.serialize_field("spec", spec)?,
                    None => object.skip_field("spec")?,
                }
                match &self.status {
                    Some(status) => object.serialize_field("status", status)?,
                    None => object.skip_field("status")?,
                }
                object.end()
            }
        }

        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = "scheduling.x-k8s.io/v1alpha1";
            const GROUP: &'static str = loadmaster_scheduler_plugins::pod_group::GROUP;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = loadmaster_scheduler_plugins::pod_group::VERSION;
            const URL_PATH_SEGMENT: &'static str = $resource;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use custom_resource;
