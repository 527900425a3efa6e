module github.com/pitcrew-dev/pitcrew/e2e/components/cluster-api

go 1.26

require sigs.k8s.io/cluster-api v1.14.2
