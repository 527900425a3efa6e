package main

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// whoAmI is the user's name as the API server knows it.
func whoAmI(ctx context.Context, api client.Client) (string, error) {
	var review authenticationv1.SelfSubjectReview
	if err := api.Create(ctx, &review); err != nil {
		return "", fmt.Errorf("ask the API server for the user's name: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}
