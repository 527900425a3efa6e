module github.com/pitcrew-dev/pitcrew/e2e/components/karpenter

go 1.26

require sigs.k8s.io/karpenter v1.13.0
