package main

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// newAuthenticator accepts the names of three users as tokens. Other requests get 401.
func newAuthenticator() authenticator.Request {
	tokens := map[string]*user.DefaultInfo{}
	for _, name := range []string{"admin", "reader", "stranger"} {
		tokens[name] = &user.DefaultInfo{Name: name, UID: name, Groups: []string{user.AllAuthenticated}}
	}
	return authenticatorfactory.NewFromTokens(tokens, nil)
}

// newAuthorizer allows everything to admin, get, list and watch to reader, and nothing to stranger (403).
func newAuthorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(_ context.Context, request authorizer.Attributes) (authorizer.Decision, string, error) {
			switch name := request.GetUser().GetName(); {
			case name == "admin", name == "reader" && request.IsReadOnly():
				return authorizer.DecisionAllow, "", nil
			default:
				return authorizer.DecisionDeny, name + " has no such permission", nil
			}
		})
}
