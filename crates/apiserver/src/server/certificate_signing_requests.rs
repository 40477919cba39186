//! Admission of CertificateSigningRequests: sets the requesting user, and checks that approvers and signers have the
//! right to the signer (upstream's CertificateApproval, CertificateSigning and CertificateSubjectRestriction).

use base64::Engine as _;
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::{ApiServer, ResourceRequest};
use crate::authorization::{
    AuthorizationAttributes, MASTERS_GROUP, RequestTarget, ResourceAttributes,
};
use crate::object::{members_mut, metadata_text};
use crate::status::ApiError;

const GROUP: &str = "certificates.k8s.io";

/// The signer whose certificates authenticate users.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Sets the requesting user of a new CertificateSigningRequest, and rejects one for the group `system:masters`.
pub(super) fn prepare_request(
    call: &ResourceRequest<'_>,
    value: &mut Value,
) -> Result<(), ApiError> {
    if !call.kind.is(GROUP, "certificatesigningrequests") {
        return Ok(());
    }
    let user = call.user;
    let spec = members_mut(&mut value["spec"]);
    for (field, given) in [
        ("username", json!(user.name)),
        ("uid", json!(user.uid)),
        ("groups", json!(user.groups)),
        ("extra", json!(user.extra)),
    ] {
        let is_empty = given == "" || given == json!([]) || given == json!({});
        if is_empty {
            spec.remove(field);
        } else {
            spec.insert(field.to_owned(), given);
        }
    }
    if value["spec"]["signerName"] != CLIENT_SIGNER {
        return Ok(());
    }
    let forbidden = |why: &str| ApiError::forbidden(call.kind, metadata_text(value, "name"), why);
    let organizations = organizations(value["spec"]["request"].as_str().unwrap_or_default())
        .ok_or_else(|| {
            forbidden("failed to parse CSR: PEM block type must be CERTIFICATE REQUEST")
        })?;
    if organizations.iter().any(|it| it == MASTERS_GROUP) {
        return Err(forbidden(&format!(
            "use of {CLIENT_SIGNER} signer with {MASTERS_GROUP} group is not allowed"
        )));
    }
    Ok(())
}

/// The groups (organizations) of the requested certificate; none if the request cannot be parsed.
fn organizations(request: &str) -> Option<Vec<String>> {
    let pem = base64::engine::general_purpose::STANDARD.decode(request).ok()?;
    let der = CertificateSigningRequestDer::from_pem_slice(&pem).ok()?;
    let (_, parsed) = X509CertificationRequest::from_der(&der).ok()?;
    let names = parsed.certification_request_info.subject.iter_organization();
    names.map(|it| it.as_str().map(str::to_owned).ok()).collect()
}

impl ApiServer {
    /// Rejects an approval or signature by a user without the right to the signer.
    pub(super) fn check_signer(
        &self,
        call: &ResourceRequest<'_>,
        old: &Value,
        new: &Value,
    ) -> Result<(), ApiError> {
        if !call.kind.is(GROUP, "certificatesigningrequests") {
            return Ok(());
        }
        let differs = |field: &str| old["status"][field] != new["status"][field];
        let verb = match call.target.subresource.as_str() {
            "approval" => "approve",
            "status" if differs("certificate") || differs("conditions") => "sign",
            _ => return Ok(()),
        };
        let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
        let domain = signer.split('/').next().unwrap_or_default();
        let may = |name: &str| {
            let what = ResourceAttributes {
                group: GROUP,
                resource: "signers",
                name,
                ..ResourceAttributes::default()
            };
            let what = RequestTarget::Resource(what);
            self.decide(&AuthorizationAttributes { user: call.user, verb, what }).is_allowed()
        };
        if may(signer) || may(&format!("{domain}/*")) {
            return Ok(());
        }
        let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(ApiError::forbidden(call.kind, metadata_text(old, "name"), &why))
    }
}
