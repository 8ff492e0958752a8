package main

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// newAuthenticator knows three users by tokens that are their names. Without a token it is 401.
func newAuthenticator() authenticator.Request {
	tokens := map[string]*user.DefaultInfo{}
	for _, name := range []string{"admin", "reader", "stranger"} {
		tokens[name] = &user.DefaultInfo{Name: name, UID: name, Groups: []string{user.AllAuthenticated}}
	}
	return authenticatorfactory.NewFromTokens(tokens, nil)
}

// newAuthorizer lets admin do everything, reader look at everything and stranger do nothing (403).
func newAuthorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(_ context.Context, request authorizer.Attributes) (authorizer.Decision, string, error) {
			switch name := request.GetUser().GetName(); {
			case name == "admin", name == "reader" && request.IsReadOnly():
				return authorizer.DecisionAllow, "", nil
			default:
				return authorizer.DecisionDeny, name + " may not", nil
			}
		})
}
