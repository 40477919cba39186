//! Kinds that are answered and never stored: reviews of tokens and of access, and bindings by body.

use http::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::create::Expected;
use super::{Answer, ApiServer, Call};
use crate::status::ApiError;

impl ApiServer {
    pub(super) fn review(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        if call.kind.resource == "bindings" {
            return self.bind(call);
        }
        let (mut review, warnings) = self.read_body(call, Expected::of(call.kind))?;
        review["status"] = match call.kind.resource {
            "tokenreviews" => self.token_review(&review),
            "selfsubjectreviews" => json!({"userInfo": call.user.info()}),
            "selfsubjectrulesreviews" => json!({
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": false,
            }),
            "selfsubjectaccessreviews" => self.access_review(&call.user.name, &review),
            "subjectaccessreviews" | "localsubjectaccessreviews" => {
                let user = review["spec"]["user"].as_str().unwrap_or_default();
                let groups = review["spec"]["groups"].as_array().map_or(0, Vec::len);
                if user.is_empty() && groups == 0 {
                    let message = "at least one of user or group must be specified";
                    return Err(ApiError::bad_request(message));
                }
                self.access_review(user, &review)
            }
            _ => return Err(ApiError::no_such_resource()),
        };
        let answer = Answer::value(201, call.kind.type_id, &review, call.form);
        Ok(answer.with_warnings(warnings).into_response())
    }

    fn token_review(&self, review: &Value) -> Value {
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        match self.shared.tokens.user(token) {
            Some(user) => json!({"authenticated": true, "user": user.info()}),
            None => json!({"user": {}, "error": "invalid bearer token"}),
        }
    }

    fn access_review(&self, user: &str, review: &Value) -> Value {
        self.shared.authorizer.review(user, &review["spec"])
    }
}
