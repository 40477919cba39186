//! Authorization of CertificateSigningRequests.

use base64::Engine as _;

use super::*;

#[test]
fn a_certificate_request_has_the_user_of_the_request() {
    let cluster = cluster();
    let group = "certificates.k8s.io";
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    cluster.grant(
        "asker",
        json!([rule(
            &["create", "update"],
            group,
            &["certificatesigningrequests", "certificatesigningrequests/approval"]
        )]),
    );
    let asker = User::authenticated("asker", vec!["g".to_owned()]);
    let spec = json!({"signerName": "e.io/s", "request": "YQ==", "usages": ["client auth"],
        "username": "system:admin", "groups": ["system:masters"], "extra": {"a": ["b"]}});
    let request = json!({"metadata": {"name": "r"}, "spec": spec});
    let (code, made) = cluster.send(&asker, Method::POST, requests, &[], &request);
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"]["username"], "asker");
    assert_eq!(made["spec"]["groups"], json!(["g", "system:authenticated"]));
    assert_eq!(made["spec"]["extra"], Value::Null);
    let path = format!("{requests}/r");
    let (_, changed) = cluster.send(&asker, Method::PUT, &path, &[], &request);
    assert_eq!(changed["spec"], made["spec"]);
    let approve = |name: &str| {
        let mut approved = made.clone();
        approved["metadata"]["resourceVersion"] = Value::Null;
        approved["status"] =
            json!({"conditions": [{"type": "Approved", "status": "True", "reason": name}]});
        said(cluster.send(&asker, Method::PUT, &format!("{path}/approval"), &[], &approved))
    };
    expect![[r#"403 Forbidden: certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to approve requests with signerName "e.io/s""#]].assert_eq(&approve("a"));
    let signers = json!([{"verbs": ["approve"], "apiGroups": [group], "resources": ["signers"], "resourceNames": ["e.io/*"]}]);
    cluster.make(
        &format!("{RBAC}/clusterroles"),
        json!({"metadata": {"name": "signers"}, "rules": signers}),
    );
    cluster.bind("clusterrolebindings", "ClusterRole", "signers", "asker");
    assert_eq!(approve("b"), "200 : ");
    let mut client = request.clone();
    client["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client".into();
    let refused = said(cluster.send(&asker, Method::POST, requests, &[], &client));
    assert!(refused.contains("failed to parse CSR"), "{refused}");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let pem = params.serialize_request(&key).and_then(|it| it.pem()).expect("a request");
    client["spec"]["request"] = base64::engine::general_purpose::STANDARD.encode(pem).into();
    let refused = said(cluster.send(&asker, Method::POST, requests, &[], &client));
    assert!(refused.ends_with("signer with system:masters group is not allowed"), "{refused}");
}
