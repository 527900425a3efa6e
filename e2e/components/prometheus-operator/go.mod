module github.com/pitcrew-dev/pitcrew/e2e/components/prometheus-operator

go 1.26

require github.com/prometheus-operator/prometheus-operator v0.88.0
